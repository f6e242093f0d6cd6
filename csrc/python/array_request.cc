#include "python/array_request.h"

#include <array>
#include <new>
#include <utility>

#include "python/gil.h"
#include "python/method.h"
#include "python/py_errors.h"
#include "python/py_operation.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

// An instance of the class, or of one derived from it.
struct ArrayRequest {
  PyObject_HEAD std::shared_ptr<PyOperation> operation;  // nullptr: it has ended well
  PyObject* result;                                      // nullptr: a derived class has it
};

PyTypeObject* array_request_class = nullptr;  // gradred.ArrayRequest; never released

ArrayRequest& array_request_of(PyObject* self) { return *reinterpret_cast<ArrayRequest*>(self); }

PyObject* new_array_request(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self != nullptr) new (&array_request_of(self).operation) std::shared_ptr<PyOperation>;
  return self;
}

int visit_array_request(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(array_request_of(self).result);
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int clear_array_request(PyObject* self) {
  Py_CLEAR(array_request_of(self).result);
  return 0;
}

void dealloc_array_request(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_array_request(self);
  array_request_of(self).operation.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

// The argument `timeout`, as a borrowed reference. nullptr: a Python error is set.
PyObject* timeout_of(PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (nargs + named == 0) return Py_None;
  const bool by_name =
      named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "timeout") == 0;
  if (nargs + named == 1 && (named == 0 || by_name)) return args[0];
  PyErr_SetString(PyExc_TypeError, "wait takes one argument at most: timeout");
  return nullptr;
}

PyObject* wait_for_array_request(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                 PyObject* names) {
  PyObject* const timeout = timeout_of(args, nargs, names);
  if (timeout == nullptr) return nullptr;
  if (timeout != Py_None || array_request_of(self).result == nullptr) {
    return PyObject_CallMethod(self, "_wait", "O", timeout);
  }
  // Another thread that waits may take it away.
  if (const std::shared_ptr<PyOperation> operation = array_request_of(self).operation) {
    try {
      operation->wait(std::nullopt);
    } catch (...) {
      set_python_error(std::current_exception());
      return nullptr;
    }
    array_request_of(self).operation.reset();
  }
  return Py_NewRef(array_request_of(self).result);
}

PyObject* get_array_operation(PyObject* self, void*) {
  try {
    return py::cast(array_request_of(self).operation).release().ptr();  // nullptr becomes None
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

PyObject* get_array_result(PyObject* self, void*) {
  PyObject* const result = array_request_of(self).result;
  return Py_NewRef(result != nullptr ? result : Py_None);
}

std::array<PyMethodDef, 2> array_request_methods = {{
    {"wait", as_method(wait_for_array_request), METH_FASTCALL | METH_KEYWORDS,
     "wait($self, timeout=None)\n--\n\n"
     "Block until the operation has ended, and return the result.\n\n"
     "The waiting thread makes progress on operations in flight.\n\n"
     "Args:\n"
     "    timeout: seconds to wait; None waits as long as `GRADRED_TIMEOUT` allows.\n\n"
     "Raises:\n"
     "    TimeoutError: it has not ended within `timeout`. It continues: wait again.\n"
     "    gradred.UsageError: `timeout` is NaN.\n"
     "    gradred.Error: the operation failed; every later call raises it again.\n"},
    {nullptr, nullptr, 0, nullptr},
}};

std::array<PyGetSetDef, 3> array_request_attributes = {{
    {"_operation", get_array_operation, nullptr, nullptr, nullptr},
    {"_result", get_array_result, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
}};

}  // namespace

py::object make_array_request(std::shared_ptr<StartedOperation> operation, py::handle x,
                              py::object result) {
  auto made =
      py::reinterpret_steal<py::object>(new_array_request(array_request_class, nullptr, nullptr));
  if (!made) throw py::error_already_set();
  ArrayRequest& request = array_request_of(made.ptr());
  if (operation != nullptr) {
    request.operation = std::make_shared<PyOperation>(std::move(operation));
    request.operation->hold(py::make_tuple(x, result));
  } else {
    GilHook hook;
    count_operation(hook);
  }
  request.result = result.release().ptr();
  return made;
}

void bind_array_request(py::module_& m) {
  std::array<PyType_Slot, 7> slots = {{
      {Py_tp_new, reinterpret_cast<void*>(new_array_request)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_array_request)},
      {Py_tp_traverse, reinterpret_cast<void*>(visit_array_request)},
      {Py_tp_clear, reinterpret_cast<void*>(clear_array_request)},
      {Py_tp_methods, array_request_methods.data()},
      {Py_tp_getset, array_request_attributes.data()},
      {0, nullptr},
  }};
  PyType_Spec spec = {"gradred._core.ArrayRequestBase", sizeof(ArrayRequest), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots.data()};
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  m.attr("ArrayRequestBase") = type;
  m.def(
      "use_array_request_class",
      [](const py::object& used) {
        array_request_class = reinterpret_cast<PyTypeObject*>(py::object(used).release().ptr());
      },
      py::arg("request_class"), "What started calls on arrays return.");
}

}  // namespace gradred
