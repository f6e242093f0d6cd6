#include "python/comm.h"

#include <pybind11/pybind11.h>

#include <array>

#include "base/errors.h"
#include "python/device_arrays.h"
#include "python/errors.h"
#include "python/method.h"
#include "python/mpi4py.h"
#include "python/numpy.h"
#include "python/one_thread.h"
#include "python/request.h"
#include "python/wait_hook.h"

namespace gradred {
namespace {

using Arguments = PyObject* const*;

bool overlap(const ArrayView& a, const ArrayView& b) {
  const auto* x = static_cast<const std::byte*>(a.data);
  const auto* y = static_cast<const std::byte*>(b.data);
  return x < y + b.count * size_of(b.dtype) && y < x + a.count * size_of(a.dtype);
}

// Two arrays of one type that may be input and result of a call.
struct Pair {
  PlainArray send, recv;
};

std::optional<Pair> pair_of(PyObject* send, PyObject* recv) {
  const auto result = plain_array_of(recv);
  if (!result || !result->writable) return std::nullopt;
  const auto input = plain_array_of(send);
  if (!input || input->dtype != result->dtype || overlap(*input, *result)) return std::nullopt;
  return Pair{*input, *result};
}

// Of a call on these; `send` null: in place.
PlainCall placed(const PlainArray* send, const PlainArray& recv, Call call) {
  if (recv.memory == nullptr && (send == nullptr || send->memory == nullptr)) [[likely]] {
    return {std::move(call)};
  }
  if (send != nullptr) call.in.memory = memory_of(send->memory);
  call.out.memory = memory_of(recv.memory);
  return {std::move(call), placement_of(send, recv)};
}

// Null: a sum. Else an object of mpi4py's, or a name.
std::optional<Op> asked_op(PyObject* op) {
  if (op == nullptr) return Op::kSum;
  if (!PyUnicode_CheckExact(op)) return op_of(op);
  for (const OpInfo& info : kOpInfo) {
    const bool is_it = PyUnicode_CompareWithASCIIString(op, info.name.data()) == 0;
    if (is_it && info.op != Op::kPremul) return info.op;  // which has a factor
  }
  return std::nullopt;
}

// The last argument, which has a default; null where it is not given. False: a closer look.
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

// For arguments that take a closer look; in the order of the methods below.
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

// Each of these understands what most programs pass; nothing where it takes a closer look.

std::optional<PlainCall> allreduce_call(const Communicator&, Arguments args, Py_ssize_t nargs,
                                        PyObject* names) {
  PyObject* op = nullptr;
  if (!last_argument(args, nargs, names, 2, "op", op)) return std::nullopt;
  return plain_allreduce(args[0], args[1], op);
}

std::optional<PlainCall> scatter_call(const Communicator& comm, Arguments args, Py_ssize_t nargs,
                                      PyObject* names) {
  PyObject* op = nullptr;
  if (!last_argument(args, nargs, names, 2, "op", op)) return std::nullopt;
  const auto both = pair_of(args[0], args[1]);
  const auto known = asked_op(op);
  const auto size = static_cast<std::size_t>(comm.size());
  if (!both || !known || both->recv.count == 0 || both->send.count != size * both->recv.count ||
      find_reduction(*known, both->recv.dtype) == nullptr) {
    return std::nullopt;
  }
  return placed(&both->send, both->recv,
                {.kind = Kind::kReduceScatterBlock,
                 .in = {both->send.data},
                 .out = {both->recv.data},
                 .count = both->recv.count,
                 .dtype = both->recv.dtype,
                 .op = *known});
}

std::optional<PlainCall> gather_call(const Communicator& comm, Arguments args, Py_ssize_t nargs,
                                     PyObject* names) {
  if (nargs != 2 || names != nullptr) return std::nullopt;
  const auto both = pair_of(args[0], args[1]);
  const auto size = static_cast<std::size_t>(comm.size());
  if (!both || both->send.count == 0 || both->recv.count != size * both->send.count) {
    return std::nullopt;
  }
  return placed(&both->send, both->recv,
                {.kind = Kind::kAllgather,
                 .in = {both->send.data},
                 .out = {both->recv.data},
                 .count = both->send.count,
                 .dtype = both->send.dtype});
}

std::optional<PlainCall> bcast_call(const Communicator& comm, Arguments args, Py_ssize_t nargs,
                                    PyObject* names) {
  PyObject* given = nullptr;
  if (!last_argument(args, nargs, names, 1, "root", given)) return std::nullopt;
  if (given != nullptr && !PyLong_CheckExact(given)) return std::nullopt;
  int overflow = 0;
  const long root = given == nullptr ? 0 : PyLong_AsLongAndOverflow(given, &overflow);
  if (overflow != 0 || root < 0 || root >= comm.size()) return std::nullopt;
  const auto data = plain_array_of(args[0]);
  if (!data || data->count == 0 || (!data->writable && root != comm.rank())) return std::nullopt;
  return placed(nullptr, *data,
                {.kind = Kind::kBcast,
                 .out = {data->data},
                 .count = data->count,
                 .dtype = data->dtype,
                 .root = static_cast<int>(root)});
}

// Null: there is no memory for it.
PyObject* tuple_of(Arguments args, Py_ssize_t count) {
  PyObject* const made = PyTuple_New(count);
  for (Py_ssize_t i = 0; made != nullptr && i < count; ++i) {
    Py_INCREF(args[i]);
    PyTuple_SET_ITEM(made, i, args[i]);
  }
  if (made == nullptr) PyErr_Clear();
  return made;
}

void run_on_device(Communicator& comm, const PlainCall& made, WaitHook& hook) {
  comm.run(ordered_or_refused(made.call, made.placement, comm, hook), hook);
}

std::shared_ptr<StartedOperation> start(Communicator& comm, const PlainCall& made) {
  if (made.call.on_host()) return comm.start_unless_ended(made.call);
  Call call;
  try {
    std::string why_waits;
    call = ordered(made.call, made.placement, comm, why_waits);
  } catch (const Error& error) {
    comm.agreement().refuse_started(error.what());
    throw;
  }
  return comm.start(call);
}

using Understand = std::optional<PlainCall> (*)(const Communicator&, Arguments, Py_ssize_t,
                                                PyObject*);

template <Understand understand, Method method>
PyObject* blocking(PyObject* self, Arguments args, Py_ssize_t nargs, PyObject* names) {
  try {
    Communicator& communicator = communicator_of(self);
    const auto found = understand(communicator, args, nargs, names);
    if (!found) return look_closer(method, self, args, nargs, names);
    const OneThread one_thread(communicator);
    GilHook hook;
    if (found->call.on_host()) [[likely]] {
      communicator.run(found->call, hook);
    } else {
      run_on_device(communicator, *found, hook);
    }
  } catch (...) {
    PyObject* const passed = tuple_of(args, nargs);
    set_python_error(std::current_exception(), passed);
    Py_XDECREF(passed);
    return nullptr;
  }
  Py_RETURN_NONE;
}

extern "C" PyObject* comm_allreduce(PyObject* self, Arguments args, Py_ssize_t nargs,
                                    PyObject* names) {
  return blocking<allreduce_call, kAllreduceMethod>(self, args, nargs, names);
}

extern "C" PyObject* comm_reduce_scatter(PyObject* self, Arguments args, Py_ssize_t nargs,
                                         PyObject* names) {
  return blocking<scatter_call, kScatterMethod>(self, args, nargs, names);
}

extern "C" PyObject* comm_allgather(PyObject* self, Arguments args, Py_ssize_t nargs,
                                    PyObject* names) {
  return blocking<gather_call, kGatherMethod>(self, args, nargs, names);
}

extern "C" PyObject* comm_bcast(PyObject* self, Arguments args, Py_ssize_t nargs, PyObject* names) {
  return blocking<bcast_call, kBcastMethod>(self, args, nargs, names);
}

extern "C" PyObject* comm_iallreduce(PyObject* self, Arguments args, Py_ssize_t nargs,
                                     PyObject* names) {
  try {
    Communicator& communicator = communicator_of(self);
    const auto found = allreduce_call(communicator, args, nargs, names);
    if (!found || !mpi::get().handle_of(found->call.dtype))
      return look_closer(kStartMethod, self, args, nargs, names);
    const OneThread one_thread(communicator);
    PyObject* const request = make_request(start(communicator, *found), args[0], args[1]);
    if (request != nullptr) warn_if_left_to_mpi(communicator, 1);
    return request;
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
     "Reduce_scatter_block($self, sendbuf, recvbuf, op=SUM)\n--\n\n"
     "Reduce the vectors of all ranks; rank r gets block r of the result. Blocks.\n\n"
     "Args:\n"
     "    sendbuf: as many blocks as there are ranks; `MPI.IN_PLACE` takes them from `recvbuf`.\n"
     "    recvbuf: one block.\n"
     "    op: an MPI.Op, a name from gradred.OPS, or gradred.premul(factor).\n\n"
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

std::optional<PlainCall> plain_allreduce(PyObject* send, PyObject* recv, PyObject* op) {
  const Mpi4py& known = Mpi4py::get();
  const auto result = plain_array_of(recv);
  if (!result || !result->writable) return std::nullopt;
  std::optional<PlainArray> input;
  if (send != known.in_place && send != Py_None) {
    input = plain_array_of(send);
    if (!input || input->count != result->count || input->dtype != result->dtype ||
        overlap(*input, *result)) {
      return std::nullopt;
    }
  }
  const auto known_op = asked_op(op);
  if (!known_op || find_reduction(*known_op, result->dtype) == nullptr) return std::nullopt;
  return placed(input ? &*input : nullptr, *result,
                {.kind = Kind::kAllreduce,
                 .in = {input ? input->data : kInPlace},
                 .out = {result->data},
                 .count = result->count,
                 .dtype = result->dtype,
                 .op = *known_op});
}

void add_methods(PyTypeObject* comm_class, PyObject* by_name) {
  for (std::size_t i = 0; i < kMethods; ++i) {
    const auto name = pybind11::str(comm_methods[i].ml_name);
    closer_looks[i] = PyDict_GetItemWithError(by_name, name.ptr());
    if (closer_looks[i] == nullptr) throw UsageError("a method without its closer look");
    Py_INCREF(closer_looks[i]);  // never let go
    PyObject* made = PyDescr_NewMethod(comm_class, &comm_methods[i]);
    if (made == nullptr) throw pybind11::error_already_set();
    const int failed = PyObject_SetAttr(reinterpret_cast<PyObject*>(comm_class), name.ptr(), made);
    Py_DECREF(made);
    if (failed != 0) throw pybind11::error_already_set();
  }
}

}  // namespace gradred
