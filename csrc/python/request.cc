#include "python/request.h"

#include <array>
#include <utility>

#include "base/errors.h"
#include "comm/communicator.h"
#include "engine/driving.h"
#include "python/base_type.h"
#include "python/gil.h"
#include "python/kept.h"
#include "python/method.h"
#include "python/mpi4py.h"
#include "python/py_errors.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

bool mpi_is_finalized() {
  int finalized = 0;
  mpi::get().call.Finalized(&finalized);
  return finalized != 0;
}

void make_empty(void* status) {
  if (status != mpi::get().is.status_ignore) mpi::get().make_empty(status);
}

}  // namespace

void release_handle(PyObject* request, const PyOperation& operation, void* status) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle handle = mpi.normalise(handle_of(request));
  if (mpi_is_finalized()) return;
  GeneralizedRequest& made = operation.generalized_request();
  if (handle == mpi.is.request_null) {  // the program has freed it
    make_empty(status);
    return made.complete();
  }
  if (made.take_back()) {
    make_empty(status);
  } else {
    int done = 0;
    // An MPI error here is the operation's own error, which the caller reports in more detail.
    static_cast<void>(mpi.call.Test(&handle, &done, status));
  }
  put_handle(request, mpi.is.request_null);
}

void* address_of_status(PyObject* status) {
  if (status == Py_None) return mpi::get().is.status_ignore;
  const py::module_ module = py::module_::import("mpi4py.MPI");
  if (!py::isinstance(status, module.attr("Status"))) {
    PyErr_Format(PyExc_TypeError, "status: expected an MPI.Status or None, got %.100s",
                 Py_TYPE(status)->tp_name);
    throw PythonError();
  }
  const py::object address = module.attr("_addressof")(py::handle(status));
  return reinterpret_cast<void*>(address.cast<std::uintptr_t>());
}

namespace {

// What a request holds of an operation until the program knows the outcome.
struct Held {
  std::shared_ptr<PyOperation> operation;  // nullptr: the handle is MPI's own request
  PyObject* memory;                        // owned reference
};

// State of an instance, stored behind mpi4py's own fields. It is zeroed memory at first.
struct State {
  Held* held;
  EndedRequest ended;  // open: the handle is this request
};

// Set once, never released.
struct InPython {
  PyObject* mpi_wait = nullptr;  // MPI.Request.Wait
  PyObject* mpi_test = nullptr;
  PyTypeObject* request_class = nullptr;
  PyObject* no_arguments = nullptr;
  std::size_t state_offset = 0;  // of the state in an instance: the size of MPI.Request
};
InPython in_python;

State& state_of(PyObject* self) {
  return *reinterpret_cast<State*>(reinterpret_cast<std::byte*>(self) + in_python.state_offset);
}

Held*& held_of(PyObject* self) { return state_of(self).held; }

// nullptr: MPI's own functions have to wait for the request.
std::shared_ptr<PyOperation> operation_of(PyObject* self) {
  return held_of(self) == nullptr ? nullptr : held_of(self)->operation;
}

// Detaches a request from its operation. Memory that the operation still uses is kept alive.
void let_go(PyObject* self) {
  const std::unique_ptr<Held> held(std::exchange(held_of(self), nullptr));
  if (held == nullptr) return;
  const PyOperation* const operation = held->operation.get();
  if (operation != nullptr && (!operation->ended() || operation->holds_memory())) {
    keep_until_ended(operation->started(), held->memory);
  } else {
    Py_DECREF(held->memory);
  }
}

}  // namespace

void release_ended(PyObject* self, EndedRequest& ended, void* status) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle handle = mpi.normalise(handle_of(self));
  if (handle == mpi.is.request_null) {  // the MPI has completed it
    make_empty(status);
    return ended.leave();
  }
  if (ended.take_back()) {
    make_empty(status);
  } else if (!mpi_is_finalized()) {
    // Another thread inside the MPI may be telling it at this moment.
    for (int done = 0; done == 0;) mpi.call.Test(&handle, &done, status);
  }
  put_handle(self, mpi.is.request_null);
}

void open_ended(PyObject* self, EndedRequest& ended) {
  ended.open();
  put_handle(self, ended.handle());
}

void drop_ended(PyObject* self, EndedRequest& ended) {
  if (!ended.is_open()) return;
  const mpi::Mpi& mpi = mpi::get();
  const bool is_completed = mpi.normalise(handle_of(self)) == mpi.is.request_null;
  // Garbage may be collected by any thread.
  const bool may_call = !is_completed && thread_may_drive() && !mpi_is_finalized();
  may_call ? ended.drop() : ended.leave();
}

PyObject* status_argument(PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (nargs + named == 0) return Py_None;
  const bool by_name =
      named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "status") == 0;
  if (nargs + named == 1 && (named == 0 || by_name)) return args[0];
  PyErr_SetString(PyExc_TypeError, "it takes one argument at most: status");
  return nullptr;
}

PyObject* ask_mpi(PyObject* self, PyObject* method, PyObject* status) {
  if (mpi::get().normalise(handle_of(self)) == mpi::get().is.request_null && status == Py_None) {
    Py_RETURN_TRUE;
  }
  const std::array<PyObject*, 2> arguments = {self, status};
  return PyObject_Vectorcall(method, arguments.data(), status == Py_None ? 1 : 2, nullptr);
}

namespace {

// For a request without an operation: calls MPI's function unless the operation has ended. A null
// request is complete.
PyObject* of_mpi(PyObject* self, PyObject* method, PyObject* status) {
  if (state_of(self).ended.is_open()) {
    try {
      release_ended(self, state_of(self).ended, address_of_status(status));
    } catch (...) {
      set_python_error(std::current_exception());
      return nullptr;
    }
    Py_RETURN_TRUE;
  }
  return ask_mpi(self, method, status);
}

// Another thread that waits for the same request finds the operation, or a null request.
void release_request(PyObject* self, const PyOperation& operation, void* status) {
  if (state_of(self).ended.is_open()) {
    release_ended(self, state_of(self).ended, status);
  } else {
    release_handle(self, operation, status);
  }
  let_go(self);
}

PyObject* wait_for_request(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                           PyObject* names) {
  PyObject* const status = status_argument(args, nargs, names);
  if (status == nullptr) return nullptr;
  const std::shared_ptr<PyOperation> operation = operation_of(self);
  if (operation == nullptr) return of_mpi(self, in_python.mpi_wait, status);
  const GeneralizedRequest::Held held(operation->generalized_request());
  const auto passed = py::reinterpret_borrow<py::object>(held_of(self)->memory);
  std::exception_ptr failure;
  try {
    void* const address = address_of_status(status);
    try {
      operation->wait(std::nullopt);
    } catch (...) {
      failure = std::current_exception();
    }
    if (operation->ended()) release_request(self, *operation, address);
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure != nullptr) {
    set_python_error(failure, passed.ptr());
    return nullptr;
  }
  Py_RETURN_TRUE;
}

PyObject* test_request(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  PyObject* const status = status_argument(args, nargs, names);
  if (status == nullptr) return nullptr;
  const std::shared_ptr<PyOperation> operation = operation_of(self);
  if (operation == nullptr) return of_mpi(self, in_python.mpi_test, status);
  const GeneralizedRequest::Held held(operation->generalized_request());
  const auto passed = py::reinterpret_borrow<py::object>(held_of(self)->memory);
  try {
    void* const address = address_of_status(status);
    if (!operation->test()) Py_RETURN_FALSE;
    release_request(self, *operation, address);
    operation->rethrow();
  } catch (...) {
    set_python_error(std::current_exception(), passed.ptr());
    return nullptr;
  }
  Py_RETURN_TRUE;
}

// Whether the operation has ended without an error and without a request.
template <class AnyOperation>
bool is_over(const AnyOperation& operation) {
  return operation.ended() && !operation.failed() && !operation.uses_mpi_request() &&
         operation.request() == mpi::get().is.request_null && !operation.holds_memory();
}

void hold(PyObject* self, std::shared_ptr<PyOperation> operation, PyObject* memory) {
  let_ended_go();
  auto held = std::make_unique<Held>(Held{std::move(operation), memory});
  Py_INCREF(memory);
  let_go(self);
  held_of(self) = held.release();
}

PyObject* hold_operation(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  try {
    if (nargs != 2) throw UsageError("_hold takes an operation and its memory");
    auto operation = py::handle(args[0]).cast<std::shared_ptr<PyOperation>>();  // None: nullptr
    if (operation != nullptr) {
      put_handle(self, operation->request());
      if (is_over(*operation) && mpi::initialized()) {
        open_ended(self, state_of(self).ended);
      }
      if (operation->uses_mpi_request()) operation = nullptr;
    }
    hold(self, std::move(operation), args[1]);
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Returns whether the operation had ended before it had a request, which is null now.
PyObject* free_ended(PyObject* self, PyObject*) {
  if (!state_of(self).ended.is_open()) Py_RETURN_FALSE;
  release_ended(self, state_of(self).ended, mpi::get().is.status_ignore);
  Py_RETURN_TRUE;
}

PyObject* get_operation(PyObject* self, void*) {
  try {
    return py::cast(operation_of(self)).release().ptr();  // nullptr becomes None
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

PyObject* get_ended(PyObject* self, void*) {
  return PyBool_FromLong(state_of(self).ended.is_open() ? 1 : 0);
}

void dealloc_request(PyObject* self) {
  PyObject_GC_UnTrack(self);  // let_go() may run Python code, which may collect garbage
  drop_ended(self, state_of(self).ended);
  let_go(self);
  dealloc_base(self, dealloc_request);
}

std::array<PyMethodDef, 5> request_methods = {{
    {"Wait", as_method(wait_for_request), METH_FASTCALL | METH_KEYWORDS,
     "Wait($self, status=None)\n--\n\n"
     "Block until the result is in place, then free the request.\n\n"
     "Raises:\n    gradred.Error: what ended the operation.\n"},
    {"Test", as_method(test_request), METH_FASTCALL | METH_KEYWORDS,
     "Test($self, status=None)\n--\n\n"
     "Return whether the result is in place; if so, free the request. Does not block.\n\n"
     "Raises:\n    gradred.Error: what ended the operation.\n"},
    {"_hold", as_method(hold_operation), METH_FASTCALL, nullptr},
    {"_free_ended", free_ended, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
}};

std::array<PyGetSetDef, 3> request_attributes = {{
    {"_operation", get_operation, nullptr, nullptr, nullptr},
    {"_ended", get_ended, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
}};

}  // namespace

py::object request_type(const py::object& request) {
  auto* base = reinterpret_cast<PyTypeObject*>(request.ptr());
  in_python.mpi_wait = py::object(request.attr("Wait")).release().ptr();
  in_python.mpi_test = py::object(request.attr("Test")).release().ptr();
  in_python.state_offset = static_cast<std::size_t>(base->tp_basicsize);
  std::array<PyType_Slot, 4> slots = {{
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_request)},
      {Py_tp_methods, request_methods.data()},
      {Py_tp_getset, request_attributes.data()},
      {0, nullptr},
  }};
  PyType_Spec spec = {"gradred._core.RequestBase",
                      static_cast<int>(in_python.state_offset + sizeof(State)), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots.data()};
  const py::tuple bases = py::make_tuple(request);
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpecWithBases(&spec, bases.ptr()));
  if (!type) throw py::error_already_set();
  return type;
}

void use_request_class(const py::object& request_class) {
  in_python.no_arguments = PyTuple_New(0);
  in_python.request_class =
      reinterpret_cast<PyTypeObject*>(py::object(request_class).release().ptr());
}

bool ended_at_once(const StartedOperation* operation) {
  return operation == nullptr || is_over(*operation);
}

PyObject* make_request(std::shared_ptr<StartedOperation> operation, PyObject* send,
                       PyObject* recv) {
  let_ended_go();
  PyTypeObject* const type = in_python.request_class;
  auto request =
      py::reinterpret_steal<py::object>(type->tp_new(type, in_python.no_arguments, nullptr));
  if (!request) return nullptr;
  if (ended_at_once(operation.get())) {
    open_ended(request.ptr(), state_of(request.ptr()).ended);
    GilHook hook;
    count_operation(hook);
    return request.release().ptr();
  }
  put_handle(request.ptr(), operation->request());
  const auto memory = py::reinterpret_steal<py::object>(PyTuple_Pack(2, send, recv));
  if (!memory) return nullptr;
  const bool of_mpi = operation->uses_mpi_request();
  hold(request.ptr(), of_mpi ? nullptr : std::make_shared<PyOperation>(std::move(operation)),
       memory.ptr());
  return request.release().ptr();
}

PyObject* wrap_request(PyObject* of_mpi, PyObject* send, PyObject* recv) {
  PyTypeObject* const type = in_python.request_class;
  auto request =
      py::reinterpret_steal<py::object>(type->tp_new(type, in_python.no_arguments, nullptr));
  const auto memory = py::reinterpret_steal<py::object>(PyTuple_Pack(2, send, recv));
  if (!request || !memory) return nullptr;
  put_handle(request.ptr(), handle_of(of_mpi));
  hold(request.ptr(), nullptr, memory.ptr());
  return request.release().ptr();
}

namespace {

// The level at which a warning names the program's line: above the frames of gradred's modules.
int level_of_program() {
  int level = 1;
  py::object frame =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && !frame.is_none()) {
    const py::object name = frame.attr("f_globals").attr("get")("__name__", "");
    if (!py::isinstance<py::str>(name) || !name.cast<std::string>().starts_with("gradred.")) break;
    frame = frame.attr("f_back");
    ++level;
  }
  return level;
}

}  // namespace

void warn_if_left_to_mpi(Communicator& comm) {
  if (!comm.dispatch().should_tell_of_mpi()) [[likely]] {
    return;
  }
  constexpr const char* kText =
      "the MPI carries out all non-blocking calls on this communicator, since no blocking call of "
      "gradred has come first. Ranks whose calls differ may wait for ever. Begin with a blocking "
      "call, for example Allreduce";
  int raised = 0;
  call_python([&] { raised = PyErr_WarnEx(PyExc_RuntimeWarning, kText, level_of_program()); });
  if (raised != 0) PyErr_WriteUnraisable(nullptr);
}

void bind_request(py::module_& m) {
  m.def(
      "request_type", &request_type, py::arg("request"),
      "Return a class derived from MPI.Request whose instances hold an operation and its memory.");
  m.def("use_request_class", &use_request_class, py::arg("request_class"),
        "What non-blocking calls return.");
  m.def(
      "release_request",
      [](const py::object& request, const PyOperation& operation, std::uintptr_t status) {
        release_handle(request.ptr(), operation,
                       status == 0 ? mpi::get().is.status_ignore : reinterpret_cast<void*>(status));
      },
      py::arg("request"), py::arg("operation"), py::arg("status"),
      "Give the MPI's request of an ended operation back, and make it null; `status` is the "
      "address of a status, or 0.");
}

}  // namespace gradred
