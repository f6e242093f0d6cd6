#include "python/persistent.h"

#include <array>

#include "base/errors.h"
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
  std::shared_ptr<Communicator> comm;  // nullptr: not bound, p() raises an error
  std::shared_ptr<PyCall> call;
  py::object written;  // the tensor in which autograd has to see each round's write; or none
  bool started = false;
  const PyOperation* current = nullptr;  // what start_bound() has started
  bool inside = false;                   // p() is running and uses this
};

std::size_t bound_offset = 0;  // offset of the pointer in an instance: the size of MPI.Prequest

Bound*& bound_of(PyObject* self) {
  return *reinterpret_cast<Bound**>(reinterpret_cast<std::byte*>(self) + bound_offset);
}

// p(): starts the operation and waits for it.
PyObject* call(PyObject* self, PyObject* args, PyObject* keywords) {
  if (PyTuple_GET_SIZE(args) != 0 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a persistent operation is called without arguments");
    return nullptr;
  }
  Bound* const bound = bound_of(self);
  if (bound == nullptr || bound->started ||
      bound->comm->is_over()) {  // MPI's own, freed or started request
    return PyObject_CallMethod(self, "_start_and_wait", nullptr);
  }
  try {
    require_rank();
    const OneThread one_thread(*bound->comm, &bound->inside);
    if (bound->written) tell_of_write(bound->written.ptr());
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

PyObject* bind(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  try {
    if (nargs != 3) throw UsageError("_bind takes a communicator, a call and its result");
    auto made = std::make_unique<Bound>();
    made->comm = communicator_of(args[0]).shared();
    made->call = py::handle(args[1]).cast<std::shared_ptr<PyCall>>();
    made->call->call.persistent = true;
    PyObject* const result = buffer_in(args[2]);
    if (autograd_sees(result)) made->written = py::reinterpret_borrow<py::object>(result);
    delete bound_of(self);
    bound_of(self) = made.release();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
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
  delete bound_of(self);
  bound_of(self) = nullptr;
  Py_RETURN_NONE;
}

// Starts the bound call, and returns the operation. It keeps `buffers` alive. Its request, if any,
// is stored in this object, so that MPI's functions find it.
PyObject* start_bound(PyObject* self, PyObject* buffers) {
  Bound* const bound = bound_of(self);
  try {
    if (bound == nullptr) throw UsageError("_start of a request that is not bound");
    if (bound->written) tell_of_write(bound->written.ptr());
    const auto comm = bound->comm;  // Python code may run now, and free this request
    const auto call = bound->call;
    const std::shared_ptr<PyOperation> operation = start_call(*comm, *call, true);
    operation->hold(py::make_tuple(py::cast(call), py::handle(buffers)));
    if (const mpi::Handle request = operation->request(); request != mpi::get().is.request_null) {
      put_handle(self, request);
    }
    if (Bound* const still = bound_of(self)) {
      still->started = true;
      still->current = operation.get();
    }
    return py::cast(operation).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    set_python_error(std::current_exception());
  }
  return nullptr;
}

// Waits for the operation that start_bound() has returned, and completes the MPI's part of it.
PyObject* wait_for_bound(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  std::exception_ptr failure;
  try {
    if (nargs != 2) throw UsageError("_wait takes an operation and a status");
    const auto operation = py::handle(args[0]).cast<std::shared_ptr<PyOperation>>();
    void* const status = address_of_status(args[1]);
    try {
      operation->wait(std::nullopt);
    } catch (...) {
      failure = std::current_exception();
    }
    Bound* const bound = bound_of(self);
    // Another thread may have waited for it, too, and started the next round.
    if (operation->ended() && bound != nullptr && bound->current == operation.get()) {
      bound->started = false;
      bound->current = nullptr;
      const mpi::Mpi& mpi = mpi::get();
      if (mpi.normalise(handle_of(self)) != mpi.is.request_null) {
        release_handle(self, *operation, status);
      }
    }
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure == nullptr) Py_RETURN_TRUE;
  set_python_error(failure);
  return nullptr;
}

PyObject* end(PyObject* self, PyObject*) {
  if (bound_of(self) != nullptr) bound_of(self)->started = false;
  Py_RETURN_NONE;
}

void dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  delete bound_of(self);
  bound_of(self) = nullptr;
  dealloc_base(self, dealloc);
}

std::array<PyMethodDef, 6> methods = {{
    {"_bind", as_method(bind), METH_FASTCALL, nullptr},
    {"_unbind", unbind, METH_NOARGS, nullptr},
    {"_start", start_bound, METH_O, nullptr},
    {"_wait", as_method(wait_for_bound), METH_FASTCALL, nullptr},
    {"_end", end, METH_NOARGS, nullptr},
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
  bound_offset = static_cast<std::size_t>(base->tp_basicsize);
  std::array<PyType_Slot, 4> slots = {{
      {Py_tp_call, reinterpret_cast<void*>(call)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_methods, methods.data()},
      {0, nullptr},
  }};
  PyType_Spec spec = {"gradred._core.PersistentBase",
                      static_cast<int>(bound_offset + sizeof(Bound*)), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots.data()};
  const py::tuple bases = py::make_tuple(prequest);
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpecWithBases(&spec, bases.ptr()));
  if (!type) throw py::error_already_set();
  return type;
}

}  // namespace gradred
