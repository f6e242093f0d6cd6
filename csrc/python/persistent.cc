#include "python/persistent.h"

#include <array>
#include <utility>

#include "base/errors.h"
#include "engine/driving.h"
#include "engine/fork_guard.h"
#include "python/base_type.h"
#include "python/comm_calls.h"
#include "python/method.h"
#include "python/mpi4py.h"
#include "python/one_thread.h"
#include "python/py_call.h"
#include "python/py_errors.h"
#include "python/py_operation.h"
#include "python/request.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

// State of an instance, stored behind mpi4py's own fields.
struct Bound {
  std::shared_ptr<Communicator> comm;
  std::shared_ptr<PyCall> call;
  py::object buffers;  // what the call reads and writes
  py::object written;  // the tensor in which autograd has to see each round's write; or none
  py::object before;   // what the program calls at the begin of each round; or none
  // Of the round that is started: its operation, unless that ended at once.
  std::shared_ptr<PyOperation> operation;
  EndedRequest ended;
  bool inside = false;  // p() is running and uses this

  bool started() const { return operation != nullptr || ended.is_open(); }
};

// Set once, never released.
struct OfMpi4py {
  PyObject* mpi_wait = nullptr;  // MPI.Request.Wait
  PyObject* mpi_test = nullptr;
  std::size_t bound_offset = 0;  // of the pointer in an instance: the size of MPI.Prequest
};
OfMpi4py of_mpi4py;

// nullptr: the request is the MPI's own, or freed.
Bound*& bound_of(PyObject* self) {
  return *reinterpret_cast<Bound**>(reinterpret_cast<std::byte*>(self) + of_mpi4py.bound_offset);
}

// Python code may run now, and free the request: what a round needs is held by the caller.
void begin_round(const Bound& bound) {
  if (bound.written) tell_of_write(bound.written.ptr());
  if (const py::object before = bound.before) before();
}

// p(): starts the operation and waits for it.
PyObject* call(PyObject* self, PyObject* args, PyObject* keywords) {
  if (PyTuple_GET_SIZE(args) != 0 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a persistent operation is called without arguments");
    return nullptr;
  }
  Bound* const bound = bound_of(self);
  if (bound == nullptr || bound->started() || bound->comm->is_over()) {
    return PyObject_CallMethod(self, "_start_and_wait", nullptr);
  }
  try {
    require_rank();
    const OneThread one_thread(*bound->comm, &bound->inside);
    begin_round(*bound);
    GilHook hook;
    if (bound->call->call.on_host()) {
      bound->comm->run_startable(bound->call->call, hook);
    } else {
      const PyCall& call = *bound->call;
      bound->comm->run_startable(ordered_or_refused(call.call, call.placement, *bound->comm, hook),
                                 hook);
    }
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
  Py_RETURN_NONE;
}

void unbind_now(PyObject* self) {
  const std::unique_ptr<Bound> bound(std::exchange(bound_of(self), nullptr));
  if (bound != nullptr) drop_ended(self, bound->ended);
}

PyObject* bind(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  try {
    if (nargs != 5) throw UsageError("_bind takes a communicator, a call, buffers, a result, ...");
    auto made = std::make_unique<Bound>();
    made->comm = communicator_of(args[0]).shared();
    made->call = py::handle(args[1]).cast<std::shared_ptr<PyCall>>();
    made->call->call.persistent = true;
    made->buffers = py::reinterpret_borrow<py::object>(args[2]);
    PyObject* const result = buffer_in(args[3]);
    if (autograd_sees(result)) made->written = py::reinterpret_borrow<py::object>(result);
    if (args[4] != Py_None) made->before = py::reinterpret_borrow<py::object>(args[4]);
    unbind_now(self);
    bound_of(self) = made.release();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* unbind(PyObject* self, PyObject*) {
  if (bound_of(self) != nullptr && bound_of(self)->inside) {
    set_python_error(std::make_exception_ptr(
        UsageError("Free of a persistent operation: another thread has called it and waits for the "
                   "result. Free it after that.")));
    return nullptr;
  }
  try {
    // The program's own thread calls this, so the request need not stay behind.
    Bound* const bound = bound_of(self);
    if (bound != nullptr && bound->ended.is_open()) {
      release_ended(self, bound->ended, mpi::get().is.status_ignore);
    }
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
  unbind_now(self);
  Py_RETURN_NONE;
}

bool has_null_handle(PyObject* self) {
  return mpi::get().normalise(handle_of(self)) == mpi::get().is.request_null;
}

// Whether a round is started that neither gradred nor the MPI's own functions have completed.
bool is_active(PyObject* self, Bound& bound) {
  if (!bound.started()) return false;
  const bool has_request =
      bound.ended.is_open() || bound.operation->request() != mpi::get().is.request_null;
  if (!has_request || !has_null_handle(self)) return true;
  bound.ended.leave();  // MPI.Request.Waitall or a similar call has completed it
  bound.operation.reset();
  return false;
}

// The round's request, if any, is stored in this object, so that MPI's functions find it.
void start_round(PyObject* self, Bound& bound) {
  const auto comm = bound.comm;
  const auto call = bound.call;
  const py::object buffers = bound.buffers;
  begin_round(bound);
  std::shared_ptr<PyOperation> operation;
  if (call->call.on_host() && !comm->is_over()) {
    const OneThread one_thread(*comm);
    auto started = comm->start_unless_ended(call->call);
    if (ended_at_once(started.get())) {
      GilHook hook;
      count_operation(hook);
    } else {
      operation = std::make_shared<PyOperation>(std::move(started));
    }
    warn_if_left_to_mpi(*comm);
  } else {
    operation = start_call(*comm, *call, true);
  }
  if (operation != nullptr) operation->hold(py::make_tuple(py::cast(call), buffers));
  Bound* const still = bound_of(self);
  if (operation == nullptr) {
    if (still != nullptr) open_ended(self, still->ended);
  } else {
    if (operation->request() != mpi::get().is.request_null) {
      put_handle(self, operation->request());
    }
    if (still != nullptr) still->operation = std::move(operation);
  }
}

PyObject* start(PyObject* self, PyObject*) {
  Bound* const bound = bound_of(self);
  if (bound == nullptr) return PyObject_CallMethod(self, "_start_unbound", nullptr);
  try {
    if (is_active(self, *bound)) return PyObject_CallMethod(self, "_refuse_start", nullptr);
    start_round(self, *bound);
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Another thread may have waited for the operation, too, and started the next round.
void end_round(PyObject* self, const std::shared_ptr<PyOperation>& operation, void* status) {
  Bound* const bound = bound_of(self);
  if (bound == nullptr || bound->operation != operation) return;
  bound->operation.reset();
  release_handle(self, *operation, status);
}

PyObject* wait_for_round(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  PyObject* const status = status_argument(args, nargs, names);
  if (status == nullptr) return nullptr;
  Bound* const bound = bound_of(self);
  if (bound == nullptr || !bound->started()) return ask_mpi(self, of_mpi4py.mpi_wait, status);
  std::exception_ptr failure;
  try {
    void* const address = address_of_status(status);
    if (bound->ended.is_open()) {
      release_ended(self, bound->ended, address);
      Py_RETURN_TRUE;
    }
    const std::shared_ptr<PyOperation> operation = bound->operation;
    try {
      operation->wait(std::nullopt);
    } catch (...) {
      failure = std::current_exception();
    }
    if (operation->ended()) end_round(self, operation, address);
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure == nullptr) Py_RETURN_TRUE;
  set_python_error(failure);
  return nullptr;
}

PyObject* test_round(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  PyObject* const status = status_argument(args, nargs, names);
  if (status == nullptr) return nullptr;
  Bound* const bound = bound_of(self);
  if (bound == nullptr || !bound->started()) return ask_mpi(self, of_mpi4py.mpi_test, status);
  try {
    void* const address = address_of_status(status);
    if (bound->ended.is_open()) {
      release_ended(self, bound->ended, address);
      Py_RETURN_TRUE;
    }
    const std::shared_ptr<PyOperation> operation = bound->operation;
    if (!operation->test()) Py_RETURN_FALSE;
    end_round(self, operation, address);
    operation->rethrow();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
  Py_RETURN_TRUE;
}

void dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  unbind_now(self);
  dealloc_base(self, dealloc);
}

std::array<PyMethodDef, 6> methods = {{
    {"Start", start, METH_NOARGS,
     "Start($self)\n--\n\n"
     "Start the operation. Local: returns immediately, without action of any other rank.\n\n"
     "Raises:\n"
     "    gradred.UsageError: the operation is started already, or the request is freed.\n"},
    {"Wait", as_method(wait_for_round), METH_FASTCALL | METH_KEYWORDS,
     "Wait($self, status=None)\n--\n\n"
     "Block until the result is in place; returns immediately if nothing is started.\n\n"
     "Raises:\n    gradred.Error: the operation failed.\n"},
    {"Test", as_method(test_round), METH_FASTCALL | METH_KEYWORDS,
     "Test($self, status=None)\n--\n\n"
     "Return whether the result is in place or nothing is started. Does not block.\n\n"
     "Raises:\n    gradred.Error: the operation failed.\n"},
    {"_bind", as_method(bind), METH_FASTCALL, nullptr},
    {"_unbind", unbind, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
}};

// A new reference to the dict of a type of mpi4py, which allows no change through Python.
PyObject* dict_of(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030C0000
  return PyType_GetDict(type);
#else
  return Py_NewRef(type->tp_dict);
#endif
}

}  // namespace

void replace_method(const py::type& type, const py::str& name, const py::object& method) {
  auto* const changed = reinterpret_cast<PyTypeObject*>(type.ptr());
  const auto dict = py::reinterpret_steal<py::dict>(dict_of(changed));
  dict[name] = method;
  PyType_Modified(changed);
}

py::object persistent_type(const py::object& prequest) {
  auto* base = reinterpret_cast<PyTypeObject*>(prequest.ptr());
  of_mpi4py.mpi_wait = py::object(prequest.attr("Wait")).release().ptr();
  of_mpi4py.mpi_test = py::object(prequest.attr("Test")).release().ptr();
  of_mpi4py.bound_offset = static_cast<std::size_t>(base->tp_basicsize);
  std::array<PyType_Slot, 4> slots = {{
      {Py_tp_call, reinterpret_cast<void*>(call)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_methods, methods.data()},
      {0, nullptr},
  }};
  PyType_Spec spec = {"gradred._core.PersistentBase",
                      static_cast<int>(of_mpi4py.bound_offset + sizeof(Bound*)), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots.data()};
  const py::tuple bases = py::make_tuple(prequest);
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpecWithBases(&spec, bases.ptr()));
  if (!type) throw py::error_already_set();
  return type;
}

}  // namespace gradred
