#include "python/comm.h"

#include <pybind11/pybind11.h>

#include <array>

#include "base/errors.h"
#include "python/device_arrays.h"
#include "python/method.h"
#include "python/mpi4py.h"
#include "python/numpy.h"
#include "python/one_thread.h"
#include "python/py_errors.h"
#include "python/request.h"
#include "python/wait_hook.h"

namespace gradred {
namespace {

using Arguments = PyObject* const*;

// Policies for reading arrays: NumPy arrays only, which is fastest, or GPU arrays as well.
struct OnHost {
  using Array = ArrayView;
  using Made = Call;
  static std::optional<Array> read(PyObject* object) { return view_of(object); }
};
struct Anywhere {
  using Array = PlainArray;
  using Made = PlainCall;
  static std::optional<Array> read(PyObject* object) { return plain_array_of(object); }
};

// Input and result of a call: two arrays of one type that do not overlap.
template <class Array>
struct Pair {
  Array send, recv;
};

template <class Arrays>
std::optional<Pair<typename Arrays::Array>> pair_of(PyObject* send, PyObject* recv) {
  const auto result = Arrays::read(recv);
  if (!result || !result->writable) return std::nullopt;
  const auto input = Arrays::read(send);
  if (!input || input->dtype != result->dtype || overlap(*input, *result)) return std::nullopt;
  return {{*input, *result}};
}

// Sets the arrays of a call; `send` nullptr means in place. The caller sets the other fields.
Call& call_on(Call& call, const ArrayView* send, const ArrayView& recv) {
  call.in.data = send != nullptr ? send->data : kInPlace;
  call.out.data = recv.data;
  call.dtype = recv.dtype;
  return call;
}
Call& call_on(PlainCall& made, const PlainArray* send, const PlainArray& recv) {
  Call& call = call_on(made.call, send, static_cast<const ArrayView&>(recv));
  call.in.memory = memory_of(send != nullptr ? send->memory : nullptr);
  call.out.memory = memory_of(recv.memory);
  made.placement = placement_of(send, recv);
  return call;
}

// Finds the last argument, which is optional: `found` is nullptr if it is not given. Returns false
// if the Python path has to handle the arguments.
bool last_argument(Arguments args, Py_ssize_t nargs, PyObject* names, Py_ssize_t before,
                   const char* name, PyObject*& found) {
  if (names != nullptr && PyTuple_GET_SIZE(names) > 0) {
    if (nargs != before || PyTuple_GET_SIZE(names) != 1 ||
        PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), name) != 0) {
      return false;
    }
    found = args[before];
    return true;
  }
  if (nargs < before || nargs > before + 1) return false;
  found = nargs > before ? args[before] : nullptr;
  return true;
}

// Methods that have a Python path, in the order of the table below.
enum Method : std::size_t {
  kAllreduceMethod,
  kStartMethod,
  kScatterMethod,
  kGatherMethod,
  kBcastMethod
};
constexpr std::size_t kMethods = 5;
std::array<PyObject*, kMethods> closer_looks{};

PyObject* look_closer(Method method, PyObject* self, Arguments args, Py_ssize_t nargs,
                      PyObject* names) {
  const auto total = nargs + (names != nullptr ? PyTuple_GET_SIZE(names) : 0);
  std::vector<PyObject*> all(static_cast<std::size_t>(total) + 1);
  all[0] = self;
  for (Py_ssize_t i = 0; i < total; ++i) all[static_cast<std::size_t>(i) + 1] = args[i];
  return PyObject_Vectorcall(closer_looks[method], all.data(), static_cast<std::size_t>(nargs) + 1,
                             names);
}

template <class Arrays>
bool read_allreduce(PyObject* send, PyObject* recv, PyObject* op, typename Arrays::Made& made) {
  const Mpi4py& known = Mpi4py::get();
  const auto result = Arrays::read(recv);
  if (!result || !result->writable) return false;
  std::optional<typename Arrays::Array> input;
  if (send != known.in_place && send != Py_None) {
    input = Arrays::read(send);
    if (!input || input->count != result->count || input->dtype != result->dtype ||
        overlap(*input, *result)) {
      return false;
    }
  }
  const auto known_op = asked_op(op);
  if (!known_op || find_reduction(*known_op, result->dtype) == nullptr) return false;
  Call& call = call_on(made, input ? &*input : nullptr, *result);
  call.kind = Kind::kAllreduce;
  call.count = result->count;
  call.op = *known_op;
  return true;
}

// Each of these reads the usual arguments. They return false if the Python path has to handle them.

struct Allreduce {
  static constexpr Method kMethod = kAllreduceMethod;
  template <class Arrays>
  static bool read(const Communicator&, Arguments args, Py_ssize_t nargs, PyObject* names,
                   typename Arrays::Made& made) {
    PyObject* op = nullptr;
    if (!last_argument(args, nargs, names, 2, "op", op)) return false;
    return read_allreduce<Arrays>(args[0], args[1], op, made);
  }
};

struct ReduceScatterBlock {
  static constexpr Method kMethod = kScatterMethod;
  template <class Arrays>
  static bool read(const Communicator& comm, Arguments args, Py_ssize_t nargs, PyObject* names,
                   typename Arrays::Made& made) {
    PyObject* op = nullptr;
    if (!last_argument(args, nargs, names, 2, "op", op)) return false;
    const auto both = pair_of<Arrays>(args[0], args[1]);
    const auto known = asked_op(op);
    const auto size = static_cast<std::size_t>(comm.size());
    if (!both || !known || both->recv.count == 0 || both->send.count != size * both->recv.count ||
        find_reduction(*known, both->recv.dtype) == nullptr) {
      return false;
    }
    Call& call = call_on(made, &both->send, both->recv);
    call.kind = Kind::kReduceScatterBlock;
    call.count = both->recv.count;
    call.op = *known;
    return true;
  }
};

struct Allgather {
  static constexpr Method kMethod = kGatherMethod;
  template <class Arrays>
  static bool read(const Communicator& comm, Arguments args, Py_ssize_t nargs, PyObject* names,
                   typename Arrays::Made& made) {
    if (nargs != 2 || names != nullptr) return false;
    const auto both = pair_of<Arrays>(args[0], args[1]);
    const auto size = static_cast<std::size_t>(comm.size());
    if (!both || both->send.count == 0 || both->recv.count != size * both->send.count) return false;
    Call& call = call_on(made, &both->send, both->recv);
    call.kind = Kind::kAllgather;
    call.count = both->send.count;
    return true;
  }
};

struct Bcast {
  static constexpr Method kMethod = kBcastMethod;
  template <class Arrays>
  static bool read(const Communicator& comm, Arguments args, Py_ssize_t nargs, PyObject* names,
                   typename Arrays::Made& made) {
    PyObject* given = nullptr;
    if (!last_argument(args, nargs, names, 1, "root", given)) return false;
    if (given != nullptr && !PyLong_CheckExact(given)) return false;
    int overflow = 0;
    const long root = given == nullptr ? 0 : PyLong_AsLongAndOverflow(given, &overflow);
    if (overflow != 0 || root < 0 || root >= comm.size()) return false;
    const auto data = Arrays::read(args[0]);
    if (!data || data->count == 0 || (!data->writable && root != comm.rank())) return false;
    Call& call = call_on(made, nullptr, *data);
    call.kind = Kind::kBcast;
    call.count = data->count;
    call.root = static_cast<int>(root);
    return true;
  }
};

// Returns nullptr if there is no memory.
PyObject* tuple_of(Arguments args, Py_ssize_t count) {
  PyObject* const made = PyTuple_New(count);
  for (Py_ssize_t i = 0; made != nullptr && i < count; ++i) {
    Py_INCREF(args[i]);
    PyTuple_SET_ITEM(made, i, args[i]);
  }
  if (made == nullptr) PyErr_Clear();
  return made;
}

// For arrays that are not all NumPy's. Returns nullptr with a Python error.
template <class Kind>
[[gnu::noinline]] PyObject* run_anywhere(PyObject* self, Communicator& comm, Arguments args,
                                         Py_ssize_t nargs, PyObject* names) {
  PlainCall made;
  if (!Kind::template read<Anywhere>(comm, args, nargs, names, made)) {
    return look_closer(Kind::kMethod, self, args, nargs, names);
  }
  const OneThread one_thread(comm);
  GilHook hook;
  comm.run(ordered_or_refused(made.call, made.placement, comm, hook), hook);
  Py_RETURN_NONE;
}

template <class Kind>
PyObject* blocking(PyObject* self, Arguments args, Py_ssize_t nargs, PyObject* names) {
  try {
    Communicator& communicator = communicator_of(self);
    Call call;
    if (!Kind::template read<OnHost>(communicator, args, nargs, names, call)) {
      return run_anywhere<Kind>(self, communicator, args, nargs, names);
    }
    const OneThread one_thread(communicator);
    GilHook hook;
    communicator.run(call, hook);
  } catch (...) {
    PyObject* const passed = tuple_of(args, nargs);
    set_python_error(std::current_exception(), passed);
    Py_XDECREF(passed);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* request_of(Communicator& comm, std::shared_ptr<StartedOperation> started,
                     Arguments args) {
  PyObject* const request = make_request(std::move(started), args[0], args[1]);
  if (request != nullptr) warn_if_left_to_mpi(comm, 1);
  return request;
}

[[gnu::noinline]] PyObject* start_anywhere(PyObject* self, Communicator& comm, Arguments args,
                                           Py_ssize_t nargs, PyObject* names) {
  PlainCall made;
  if (!Allreduce::read<Anywhere>(comm, args, nargs, names, made)) {
    return look_closer(kStartMethod, self, args, nargs, names);
  }
  const OneThread one_thread(comm);
  return request_of(comm, comm.start(ordered_or_refused(made.call, made.placement, comm)), args);
}

extern "C" PyObject* comm_allreduce(PyObject* self, Arguments args, Py_ssize_t nargs,
                                    PyObject* names) {
  return blocking<Allreduce>(self, args, nargs, names);
}

extern "C" PyObject* comm_reduce_scatter(PyObject* self, Arguments args, Py_ssize_t nargs,
                                         PyObject* names) {
  return blocking<ReduceScatterBlock>(self, args, nargs, names);
}

extern "C" PyObject* comm_allgather(PyObject* self, Arguments args, Py_ssize_t nargs,
                                    PyObject* names) {
  return blocking<Allgather>(self, args, nargs, names);
}

extern "C" PyObject* comm_bcast(PyObject* self, Arguments args, Py_ssize_t nargs, PyObject* names) {
  return blocking<Bcast>(self, args, nargs, names);
}

extern "C" PyObject* comm_iallreduce(PyObject* self, Arguments args, Py_ssize_t nargs,
                                     PyObject* names) {
  try {
    Communicator& communicator = communicator_of(self);
    Call call;
    if (!Allreduce::read<OnHost>(communicator, args, nargs, names, call)) {
      return start_anywhere(self, communicator, args, nargs, names);
    }
    const OneThread one_thread(communicator);
    return request_of(communicator, communicator.start_unless_ended(call), args);
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

std::array<PyMethodDef, kMethods> comm_methods = {{
    {"Allreduce", as_method(comm_allreduce), METH_FASTCALL | METH_KEYWORDS,
     "Allreduce($self, sendbuf, recvbuf, op=SUM, *, stream=None)\n--\n\n"
     "Reduce the vectors of all ranks elementwise; every rank gets the result.\n\n"
     "Blocks until the result is in `recvbuf`, unless `stream` is given; all ranks get bitwise "
     "the\n"
     "same.\n\n"
     "Args:\n"
     "    sendbuf: this rank's input, left unchanged: an array or an mpi4py buffer specification;\n"
     "        MPI.IN_PLACE (or None) takes it from `recvbuf`.\n"
     "    recvbuf: where the result goes: as many elements of the same type, writable.\n"
     "    op: an MPI.Op, a name from gradred.OPS, or gradred.premul(factor).\n"
     "    stream: as in gradred.allreduce.\n\n"
     "Raises:\n"
     "    gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.\n"
     "    gradred.PeerLost: the process of a peer has ended.\n"},
    {"Iallreduce", as_method(comm_iallreduce), METH_FASTCALL | METH_KEYWORDS,
     "Iallreduce($self, sendbuf, recvbuf, op=SUM, *, stream=None)\n--\n\n"
     "Start an allreduce; returns at once, before any other rank has to do anything.\n\n"
     "The MPI carries it out until a blocking call of gradred has set up the communicator: begin\n"
     "with one.\n\n"
     "Args:\n"
     "    sendbuf: this rank's input, not to be changed until the request is done.\n"
     "    recvbuf: where the result goes, not to be touched until then.\n"
     "    op: an MPI.Op, a name from gradred.OPS, or gradred.premul(factor).\n"
     "    stream: as in gradred.iallreduce.\n\n"
     "Returns:\n"
     "    A request for its own `Wait` and `Test` and for `MPI.Request.Waitall` and its like.\n\n"
     "Raises:\n"
     "    gradred.UsageError: the arguments do not fit each other.\n"},
    {"Reduce_scatter_block", as_method(comm_reduce_scatter), METH_FASTCALL | METH_KEYWORDS,
     "Reduce_scatter_block($self, sendbuf, recvbuf, op=SUM, *, stream=None)\n--\n\n"
     "Reduce the vectors of all ranks; rank r gets block r of the result. Blocks.\n\n"
     "Args:\n"
     "    sendbuf: as many blocks as there are ranks; `MPI.IN_PLACE` takes them from `recvbuf`.\n"
     "    recvbuf: one block.\n"
     "    op: an MPI.Op, a name from gradred.OPS, or gradred.premul(factor).\n"
     "    stream: as in gradred.reduce_scatter.\n\n"
     "Raises:\n"
     "    gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.\n"},
    {"Allgather", as_method(comm_allgather), METH_FASTCALL | METH_KEYWORDS,
     "Allgather($self, sendbuf, recvbuf)\n--\n\n"
     "Put the vectors of all ranks one after the other, on every rank. Blocks.\n\n"
     "Args:\n"
     "    sendbuf: one block, of any MPI type; `MPI.IN_PLACE` takes it from its place in\n"
     "        `recvbuf`.\n"
     "    recvbuf: as many blocks as there are ranks.\n\n"
     "Raises:\n"
     "    gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.\n"},
    {"Bcast", as_method(comm_bcast), METH_FASTCALL | METH_KEYWORDS,
     "Bcast($self, buf, root=0)\n--\n\n"
     "Copy the elements of `root`'s buffer, of any MPI type, to those of all ranks. Blocks.\n\n"
     "Raises:\n"
     "    gradred.UsageError: `buf` means nothing, or the ranks' calls differ.\n"},
}};

}  // namespace

bool overlap(const ArrayView& a, const ArrayView& b) {
  const auto* x = static_cast<const std::byte*>(a.data);
  const auto* y = static_cast<const std::byte*>(b.data);
  return x < y + b.count * size_of(b.dtype) && y < x + a.count * size_of(a.dtype);
}

std::optional<Op> asked_op(PyObject* op) {
  if (op == nullptr) return Op::kSum;
  if (!PyUnicode_Check(op)) return op_of(op);
  for (const OpInfo& info : kOpInfo) {
    const bool is_it = PyUnicode_CompareWithASCIIString(op, info.name.data()) == 0;
    if (is_it && info.op != Op::kPremul) return info.op;  // premul needs a factor
  }
  return std::nullopt;
}

bool plain_allreduce(PyObject* send, PyObject* recv, PyObject* op, PlainCall& made) {
  return read_allreduce<Anywhere>(send, recv, op, made);
}

void add_methods(PyTypeObject* comm_class, PyObject* by_name) {
  for (std::size_t i = 0; i < kMethods; ++i) {
    const auto name = pybind11::str(comm_methods[i].ml_name);
    closer_looks[i] = PyDict_GetItemWithError(by_name, name.ptr());
    if (closer_looks[i] == nullptr) throw UsageError("a method without its closer look");
    Py_INCREF(closer_looks[i]);  // never released
    PyObject* made = PyDescr_NewMethod(comm_class, &comm_methods[i]);
    if (made == nullptr) throw pybind11::error_already_set();
    const int failed = PyObject_SetAttr(reinterpret_cast<PyObject*>(comm_class), name.ptr(), made);
    Py_DECREF(made);
    if (failed != 0) throw pybind11::error_already_set();
  }
}

}  // namespace gradred
