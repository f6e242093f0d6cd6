#include "python/comm.h"

#include <pybind11/pybind11.h>

#include <array>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "python/comm_calls.h"
#include "python/method.h"
#include "python/mpi_only.h"
#include "python/one_thread.h"
#include "python/py_errors.h"
#include "python/request.h"
#include "python/wait_hook.h"

namespace gradred {
namespace {

// For each method its Python path, by the kind of call and whether it returns at once.
std::array<PyObject*, 2 * kCalledKinds> closer_looks{};
std::array<PyObject*, 2 * kCalledKinds> mpi4pys{};  // mpi4py's own methods, likewise
PyTypeObject* gradreds_comm = nullptr;              // gradred.Comm

template <Kind kKind, bool kStarts>
constexpr std::size_t kMethod = 2 * static_cast<std::size_t>(kKind) + (kStarts ? 1 : 0);

PyObject* look_closer(std::size_t method, PyObject* self, Arguments args, Py_ssize_t nargs,
                      PyObject* names) {
  const auto total = nargs + (names != nullptr ? PyTuple_GET_SIZE(names) : 0);
  std::vector<PyObject*> all(static_cast<std::size_t>(total) + 1);
  pybind11::object wrapped;
  if (PyObject_TypeCheck(self, gradreds_comm) == 0) {
    auto* const type = reinterpret_cast<PyObject*>(gradreds_comm);
    wrapped = pybind11::reinterpret_steal<pybind11::object>(PyObject_CallOneArg(type, self));
    if (!wrapped) return nullptr;
    self = wrapped.ptr();
  }
  all[0] = self;
  for (Py_ssize_t i = 0; i < total; ++i) all[static_cast<std::size_t>(i) + 1] = args[i];
  return PyObject_Vectorcall(closer_looks[method], all.data(), static_cast<std::size_t>(nargs) + 1,
                             names);
}

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

// Runs a call on buffers that are not all NumPy's arrays. Returns false if the Python path has to.
template <class Reader>
[[gnu::noinline]] bool run_anywhere(Communicator& comm, const Placed& args) {
  AnyCall made;
  if (!Reader::template read<Anywhere>(comm, args, made)) return false;
  const OneThread one_thread(comm);
  GilHook hook;
  if (made.call.on_host()) {
    comm.run(made.call, hook);
  } else {
    comm.run(ordered_or_refused(made.call, made.placement, comm, hook), hook);
  }
  return true;
}

// Whether the MPI knows the communicator.
bool is_of_mpi(const Communicator& comm) { return comm.handle() != mpi::get().is.comm_null; }

// Makes a reduction of one rank's own array, of whatever type, a copy of its bytes. Returns whether
// it is one.
bool make_copy(const Communicator& comm, MpiOnly::Made& made) {
  if (comm.size() > 1 || is_logical(made.op)) return false;
  made.op = Op::kSum;
  return true;
}

// Runs a call on arrays of a type that only the MPI has. Returns nullopt if the Python path has to,
// and nullptr with a Python error.
template <class Reader>
[[gnu::noinline]] std::optional<PyObject*> run_mpi_only(Communicator& comm, PyObject* self,
                                                        const Placed& args) {
  MpiOnly::Made made;
  if (!Reader::template read<MpiOnly>(comm, args, made) || !is_of_mpi(comm)) return std::nullopt;
  const auto compared = compared_by_ranks(made);
  if (!compared) return std::nullopt;
  if constexpr (reduces(Reader::kKind)) {
    if (!make_copy(comm, made)) {
      agree_on(comm, made, *compared);
      return call_mpi4py(mpi4pys[kMethod<Reader::kKind, false>], self, args, made.op);
    }
  }
  made.layout = *compared;
  const OneThread one_thread(comm);
  GilHook hook;
  comm.run(made, hook);
  return Py_NewRef(Py_None);
}

template <class Reader>
PyObject* blocking(PyObject* self, Arguments args, Py_ssize_t nargs, PyObject* names) {
  try {
    Communicator& communicator = communicator_of(self);
    ByName by_name;
    Placed placed;
    const bool is_placed = place<Reader::kNames>(args, nargs, names, by_name, placed);
    Call call;
    if (is_placed && Reader::template read<OnHost>(communicator, placed, call)) [[likely]] {
      const OneThread one_thread(communicator);
      GilHook hook;
      communicator.run(call, hook);
    } else if (!is_placed || !run_anywhere<Reader>(communicator, placed)) {
      const auto done = is_placed ? run_mpi_only<Reader>(communicator, self, placed) : std::nullopt;
      if (done) return *done;
      return look_closer(kMethod<Reader::kKind, false>, self, args, nargs, names);
    }
  } catch (...) {
    const Py_ssize_t named = names != nullptr ? PyTuple_GET_SIZE(names) : 0;
    PyObject* const passed = tuple_of(args, nargs + named);
    set_python_error(std::current_exception(), passed);
    Py_XDECREF(passed);
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Starts a call on buffers that are not all NumPy's arrays. Returns nullopt if the Python path has
// to.
template <class Reader>
[[gnu::noinline]] std::optional<PyObject*> start_anywhere(Communicator& comm, const Placed& args) {
  AnyCall made;
  if (!Reader::template read<Anywhere>(comm, args, made)) return std::nullopt;
  const OneThread one_thread(comm);
  auto started = made.call.on_host()
                     ? comm.start_unless_ended(made.call)
                     : comm.start(ordered_or_refused(made.call, made.placement, comm));
  if (ended_at_once(started.get())) return make_request(nullptr, args.needed[0], args.needed[1]);
  const auto send = made.send.keeper(args.needed[0]);
  const auto recv = made.recv.keeper(args.needed[1]);
  return make_request(std::move(started), send.ptr(), recv.ptr());
}

// Lets the MPI start a reduction of a type that only the MPI has. Returns as run_mpi_only() does.
template <class Reader>
[[gnu::noinline]] std::optional<PyObject*> start_mpi_only(Communicator& comm, PyObject* self,
                                                          const Placed& args) {
  MpiOnly::Made made;
  if (!Reader::template read<MpiOnly>(comm, args, made) || !is_of_mpi(comm)) return std::nullopt;
  if (compared_by_ranks(made) && make_copy(comm, made)) {
    const OneThread one_thread(comm);
    return make_request(comm.start_unless_ended(made), args.needed[0], args.needed[1]);
  }
  const auto started = call_mpi4py(mpi4pys[kMethod<Reader::kKind, true>], self, args, made.op);
  if (!started || *started == nullptr) return started;
  PyObject* const request = wrap_request(*started, args.needed[0], args.needed[1]);
  Py_DECREF(*started);
  return request;
}

template <class Reader>
PyObject* starting(PyObject* self, Arguments args, Py_ssize_t nargs, PyObject* names) {
  try {
    Communicator& communicator = communicator_of(self);
    ByName by_name;
    Placed placed;
    const bool is_placed = place<Reader::kNames>(args, nargs, names, by_name, placed);
    Call call;
    PyObject* request = nullptr;
    if (is_placed && Reader::template read<OnHost>(communicator, placed, call)) {
      const OneThread one_thread(communicator);
      request =
          make_request(communicator.start_unless_ended(call), placed.needed[0], placed.needed[1]);
    } else {
      const auto started = is_placed ? start_anywhere<Reader>(communicator, placed) : std::nullopt;
      if (!started) {
        const auto of_mpi =
            is_placed ? start_mpi_only<Reader>(communicator, self, placed) : std::nullopt;
        if (of_mpi) return *of_mpi;
        return look_closer(kMethod<Reader::kKind, true>, self, args, nargs, names);
      }
      request = *started;
    }
    if (request != nullptr) warn_if_left_to_mpi(communicator);
    return request;
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

// The method Allreduce of any communicator, of (comm, sendbuf, recvbuf, op).
PyObject* allreduce_on(PyObject*, Arguments args, Py_ssize_t nargs) {
  if (nargs < 1) {
    PyErr_SetString(PyExc_TypeError, "a communicator and the arguments of Allreduce");
    return nullptr;
  }
  return blocking<ReductionCall<Kind::kAllreduce>>(args[0], args + 1, nargs - 1, nullptr);
}

// What the methods' own texts are; the others' follow from their names.
struct Text {
  std::string_view method;
  const char* text;
};
constexpr std::array kTexts = std::to_array<Text>({
    {"Allreduce",
     "Allreduce($self, sendbuf, recvbuf, op=SUM, *, stream=None, leaves=None, wire=None)\n--\n\n"
     "Reduce the vectors of all ranks elementwise; every rank gets the result.\n\n"
     "Blocks until the result is in `recvbuf`, unless `stream` is given; all ranks get bitwise "
     "the\n"
     "same.\n\n"
     "Args:\n"
     "    sendbuf: this rank's input, left unchanged: an array or an mpi4py buffer specification;\n"
     "        MPI.IN_PLACE (or None) takes it from `recvbuf`.\n"
     "    recvbuf: where the result goes: as many elements of the same type, writable.\n"
     "    op: an MPI.Op, a name from gradred.OPS, or gradred.premul(factor).\n"
     "    stream: as in gradred.allreduce.\n"
     "    leaves: as in gradred.allreduce; sendbuf has so many times the elements of recvbuf.\n"
     "    wire: as in gradred.allreduce.\n\n"
     "Raises:\n"
     "    gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.\n"
     "    gradred.PeerLost: the process of a peer has ended.\n"},
    {"Iallreduce",
     "Iallreduce($self, sendbuf, recvbuf, op=SUM, *, stream=None, leaves=None, wire=None)\n--\n\n"
     "Start an allreduce; returns at once, before any other rank has to do anything.\n\n"
     "The MPI carries it out until a blocking call of gradred has set up the communicator: begin\n"
     "with one.\n\n"
     "Args:\n"
     "    sendbuf: this rank's input, not to be changed until the request is done.\n"
     "    recvbuf: where the result goes, not to be touched until then.\n"
     "    op: an MPI.Op, a name from gradred.OPS, or gradred.premul(factor).\n"
     "    stream: as in gradred.iallreduce.\n"
     "    leaves: as in gradred.iallreduce.\n"
     "    wire: as in gradred.iallreduce.\n\n"
     "Returns:\n"
     "    A request for its own `Wait` and `Test` and for `MPI.Request.Waitall` and its like.\n\n"
     "Raises:\n"
     "    gradred.UsageError: the arguments do not fit each other.\n"},
    {"Reduce_scatter_block",
     "Reduce_scatter_block($self, sendbuf, recvbuf, op=SUM, *, stream=None)\n--\n\n"
     "Reduce the vectors of all ranks; rank r gets block r of the result. Blocks.\n\n"
     "Args:\n"
     "    sendbuf: as many blocks as there are ranks; `MPI.IN_PLACE` takes them from `recvbuf`.\n"
     "    recvbuf: one block.\n"
     "    op: an MPI.Op, a name from gradred.OPS, or gradred.premul(factor).\n"
     "    stream: as in gradred.reduce_scatter.\n\n"
     "Raises:\n"
     "    gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.\n"},
    {"Allgather",
     "Allgather($self, sendbuf, recvbuf)\n--\n\n"
     "Put the vectors of all ranks one after the other, on every rank. Blocks.\n\n"
     "Args:\n"
     "    sendbuf: one block, of any MPI type; `MPI.IN_PLACE` takes it from its place in\n"
     "        `recvbuf`.\n"
     "    recvbuf: as many blocks as there are ranks.\n\n"
     "Raises:\n"
     "    gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.\n"},
    {"Bcast",
     "Bcast($self, buf, root=0)\n--\n\n"
     "Copy the elements of `root`'s buffer, of any MPI type, to those of all ranks. Blocks.\n\n"
     "Raises:\n"
     "    gradred.UsageError: `buf` means nothing, or the ranks' calls differ.\n"},
});

std::string in_capital(std::string name) {
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

// The text of a method as Python's tools read it.
std::string text_of(const std::string& method) {
  for (const Text& own : kTexts) {
    if (own.method == method) return own.text;
  }
  const bool starts = method[0] == 'I';
  return method + "($self, sendbuf, recvbuf, op=SUM, *, stream=None)\n--\n\n" +
         (starts ? "Start a `" + in_capital(method.substr(1)) + "`; the arguments are those of "
                 : "Call mpi4py's `" + method + "` by gradred; the arguments are those of ") +
         (starts ? "`Iallreduce`.\n" : "`Allreduce`.\n");
}

struct Method {
  std::string name;
  std::string text;
  std::size_t index;  // of its Python path
  PyMethodDef made;
};

template <class Function>
void add_method(std::deque<Method>& methods, std::string name, std::size_t index, Function run) {
  Method& added = methods.emplace_back(std::move(name), std::string(), index, PyMethodDef{});
  added.text = text_of(added.name);
  added.made = {added.name.c_str(), as_method(run), METH_FASTCALL | METH_KEYWORDS,
                added.text.c_str()};
}

// Of the kinds that reduce, which all have one form: mpi4py's names, blocking and not.
template <std::size_t... kIndexes>
void add_reductions(std::deque<Method>& methods, std::index_sequence<kIndexes...>) {
  const auto add = [&]<Kind kKind>() {
    if constexpr (reduces(kKind)) {
      const std::string name(name_of(kKind));
      add_method(methods, in_capital(name), kMethod<kKind, false>, blocking<ReductionCall<kKind>>);
      add_method(methods, "I" + name, kMethod<kKind, true>, starting<ReductionCall<kKind>>);
    }
  };
  (add.template operator()<static_cast<Kind>(kIndexes)>(), ...);
}

// The definitions stay, as Python's descriptors refer to them.
const std::deque<Method>& all_methods() {
  static std::deque<Method> methods;
  if (methods.empty()) {
    add_reductions(methods, std::make_index_sequence<kCalledKinds>());
    add_method(methods, "Allgather", kMethod<Kind::kAllgather, false>, blocking<AllgatherCall>);
    add_method(methods, "Bcast", kMethod<Kind::kBcast, false>, blocking<BcastCall>);
  }
  return methods;
}

}  // namespace

bool is_intracommunicator(PyObject* object) {
  return PyObject_TypeCheck(object, gradreds_comm->tp_base) != 0;
}

void bind_comm(pybind11::module_& m) {
  static std::array<PyMethodDef, 2> functions = {{
      {"allreduce_on", as_method(allreduce_on), METH_FASTCALL,
       "allreduce_on(comm, sendbuf, recvbuf, op, /)\n--\n\n"
       "Call `gradred.Comm(comm).Allreduce` without making a Comm.\n"},
      {nullptr, nullptr, 0, nullptr},
  }};
  if (PyModule_AddFunctions(m.ptr(), functions.data()) != 0) throw pybind11::error_already_set();
}

void add_methods(PyTypeObject* comm_class, PyObject* by_name) {
  gradreds_comm = comm_class;
  for (const Method& method : all_methods()) {
    const auto name = pybind11::str(method.name);
    PyObject* const look = PyDict_GetItemWithError(by_name, name.ptr());
    if (look == nullptr) throw UsageError("a method without its closer look");
    closer_looks[method.index] = Py_NewRef(look);  // never released, as the next
    auto* const base = reinterpret_cast<PyObject*>(comm_class->tp_base);
    mpi4pys[method.index] = PyObject_GetAttr(base, name.ptr());
    if (mpi4pys[method.index] == nullptr) throw pybind11::error_already_set();
    auto* const definition = const_cast<PyMethodDef*>(&method.made);
    PyObject* made = PyDescr_NewMethod(comm_class, definition);
    if (made == nullptr) throw pybind11::error_already_set();
    const int failed = PyObject_SetAttr(reinterpret_cast<PyObject*>(comm_class), name.ptr(), made);
    Py_DECREF(made);
    if (failed != 0) throw pybind11::error_already_set();
  }
}

}  // namespace gradred
