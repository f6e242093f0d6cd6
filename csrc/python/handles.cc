// Numbered handles of operations in flight, as in Horovod. This is a Python type without pybind11,
// whose calls take longer than these functions. It takes no part in garbage collection, as a
// process has one such object for its whole life.
#include <pybind11/pybind11.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>

#include "base/errors.h"
#include "base/free_blocks.h"
#include "python/method.h"
#include "python/py_errors.h"
#include "python/py_named.h"

namespace py = pybind11;

namespace gradred {
namespace {

class Handles {
 public:
  // Functions that convert the errors of starting an operation and of waiting for it.
  struct Converters {
    py::object starting, waiting;
  };
  explicit Handles(Converters converters) : converters(std::move(converters)) {}
  const Converters converters;

  using Request = std::shared_ptr<PyNamedRequest>;  // shared: a thread may test while another waits
  using Entry = std::variant<Request, py::object>;  // the object: made by Python code

  long long add(Entry entry) {
    entries_.emplace(next_, std::move(entry));
    return next_++;
  }
  const Entry* find(long long handle) const {
    const auto found = entries_.find(handle);
    return found == entries_.end() ? nullptr : &found->second;
  }
  // Removes and returns the request; nullptr: the handle is another kind's, or unknown.
  Request take_request(long long handle) {
    const auto found = entries_.find(handle);
    if (found == entries_.end()) return nullptr;
    auto* const request = std::get_if<Request>(&found->second);
    if (request == nullptr) return nullptr;
    Request taken = std::move(*request);
    entries_.erase(found);
    return taken;
  }
  std::optional<Entry> take(long long handle) {
    const auto found = entries_.extract(handle);
    if (found.empty()) return std::nullopt;
    return std::move(found.mapped());
  }
  NamedOperations& engine_of(PyObject* object) {
    if (engine_.ptr() != object) {
      known_ = py::handle(object).cast<std::shared_ptr<NamedOperations>>();
      engine_ = py::reinterpret_borrow<py::object>(object);
    }
    return *known_;
  }
  void forget_engine() {
    known_.reset();
    const auto engine = std::exchange(engine_, {});
  }
  void clear() {
    forget_engine();
    next_ = 1;
    const auto entries = std::exchange(entries_, {});
  }

 private:
  std::unordered_map<long long, Entry, std::hash<long long>, std::equal_to<>,
                     PoolAllocator<std::pair<const long long, Entry>>>
      entries_;
  long long next_ = 1;
  py::object engine_;  // the engine of the last call
  std::shared_ptr<NamedOperations> known_;
};

struct Object {
  PyObject_HEAD  //
      Handles* handles;
};

Handles& handles_of(PyObject* self) { return *reinterpret_cast<Object*>(self)->handles; }

template <class Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

// Raises the current Python exception after its conversion by `convert`.
PyObject* raise_as(const py::object& convert) {
  try {
    const py::error_already_set raised;  // takes the current exception
    const py::object other = convert(raised.value());
    if (!other.is(raised.value())) {
      PyException_SetCause(other.ptr(), Py_NewRef(raised.value().ptr()));
    }
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(other.ptr())), other.ptr());
  } catch (...) {
    set_python_error(std::current_exception());
  }
  return nullptr;
}

PyObject* none() { return py::none().release().ptr(); }

// Converts an integer, also NumPy's. Returns nullopt for other objects.
std::optional<long long> handle_of(PyObject* object) {
  if (!PyIndex_Check(object)) return std::nullopt;
  py::object number;
  if (!PyLong_CheckExact(object)) {
    number = py::reinterpret_steal<py::object>(PyNumber_Index(object));
    object = number.ptr();
  }
  const long long handle = object != nullptr ? PyLong_AsLongLong(object) : -1;
  if (handle == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();  // not a number, or out of range
    return std::nullopt;
  }
  return handle;
}

// Converts Horovod's number of a reduction; None is an average. The engine has no Adasum.
std::optional<Op> op_of(PyObject* number) {
  constexpr std::array<std::optional<Op>, 6> kOps = {Op::kAvg, Op::kSum, std::nullopt,
                                                     Op::kMin, Op::kMax, Op::kProd};
  if (number == Py_None) return Op::kAvg;
  const auto index = handle_of(number);
  if (!index || *index < 0 || *index >= static_cast<long long>(kOps.size())) return std::nullopt;
  return kOps[static_cast<std::size_t>(*index)];
}

// start_allreduce(engine, tensor, out, name, op, prescale, postscale, priority)
PyObject* start_allreduce(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (count != 8) {
    PyErr_SetString(PyExc_TypeError, "start_allreduce takes 8 arguments");
    return nullptr;
  }
  PyObject* const started = guarded([&]() -> PyObject* {
    if (given[0] == Py_None || !PyUnicode_CheckExact(given[3])) return none();
    Handles& handles = handles_of(self);
    NamedOperations& engine = handles.engine_of(given[0]);
    const auto op = op_of(given[4]);
    if (!op) return none();
    const TensorCall how{.op = *op,
                         .prescale = number_of(given[5]),
                         .postscale = number_of(given[6]),
                         .priority = priority_of(given[7])};
    std::string name = "allreduce.";
    name += text_of(given[3]);
    Handles::Request request = submit_tensor(engine, std::move(name), given[1], given[2], how);
    if (request == nullptr) return none();
    return PyLong_FromLongLong(handles.add(std::move(request)));
  });
  return started != nullptr ? started : raise_as(handles_of(self).converters.starting);
}

// wait(handle): waits and returns the result, or NotImplemented if take(handle) has to be called.
PyObject* wait_handle(PyObject* self, PyObject* given) {
  PyObject* const result = guarded([&]() -> PyObject* {
    Handles& handles = handles_of(self);
    const auto handle = handle_of(given);
    const Handles::Request taken = handle ? handles.take_request(*handle) : nullptr;
    if (taken == nullptr) return Py_NewRef(Py_NotImplemented);
    return taken->wait_for_held().release().ptr();
  });
  return result != nullptr ? result : raise_as(handles_of(self).converters.waiting);
}

// carry_out(finish, start, ...): calls start(...), in which submissions wait, and returns the
// result of its handle: by wait(), or else by finish(handle).
PyObject* carry_out(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  if (count < 2) {
    PyErr_SetString(PyExc_TypeError, "carry_out takes two functions");
    return nullptr;
  }
  const auto handle = py::reinterpret_steal<py::object>(
      call_with_waits(std::nullopt, given[1], given + 2, count - 2, names));
  if (!handle) return nullptr;
  PyObject* const result = wait_handle(self, handle.ptr());
  if (result != Py_NotImplemented) return result;
  Py_DECREF(result);
  return PyObject_CallOneArg(given[0], handle.ptr());
}

PyObject* put_handle(PyObject* self, PyObject* given) {
  return guarded([&] {
    return PyLong_FromLongLong(handles_of(self).add(py::reinterpret_borrow<py::object>(given)));
  });
}

// take(handle): removes and returns the object that put() stored, or None.
PyObject* take_handle(PyObject* self, PyObject* given) {
  return guarded([&]() -> PyObject* {
    const auto handle = handle_of(given);
    auto found = handle ? handles_of(self).take(*handle) : std::nullopt;
    if (!found) return none();
    return std::get<py::object>(*found).release().ptr();
  });
}

// get(handle): the object that put() stored, or for a tensor's request whether it has ended.
PyObject* get_handle(PyObject* self, PyObject* given) {
  return guarded([&]() -> PyObject* {
    const auto handle = handle_of(given);
    const auto* const found = handle ? handles_of(self).find(*handle) : nullptr;
    if (found == nullptr) return none();
    if (const auto* const put = std::get_if<py::object>(found)) {
      return py::object(*put).release().ptr();
    }
    const Handles::Request request = std::get<Handles::Request>(*found);
    return py::bool_(request->test()).release().ptr();
  });
}

// Drops the reference to the last engine, and with it the engine's memory and connections.
PyObject* forget_engine(PyObject* self, PyObject*) {
  return guarded([&] {
    handles_of(self).forget_engine();
    return none();
  });
}

PyObject* clear_handles(PyObject* self, PyObject*) {
  return guarded([&] {
    handles_of(self).clear();
    return none();
  });
}

PyObject* make_handles(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  const bool fits =
      PyTuple_GET_SIZE(args) == 2 && (kwargs == nullptr || PyDict_GET_SIZE(kwargs) == 0);
  if (!fits) {
    PyErr_SetString(PyExc_TypeError, "Handles takes two functions");
    return nullptr;
  }
  return guarded([&] {
    const auto function = [args](Py_ssize_t index) {
      return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(args, index));
    };
    auto handles = std::make_unique<Handles>(Handles::Converters{function(0), function(1)});
    PyObject* const self = type->tp_alloc(type, 0);
    if (self != nullptr) reinterpret_cast<Object*>(self)->handles = handles.release();
    return self;
  });
}

void destroy_handles(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<Object*>(self)->handles;
  type->tp_free(self);
  Py_DECREF(type);
}

std::array<PyMethodDef, 9> handles_methods = {{
    {"start_allreduce", as_method(start_allreduce), METH_FASTCALL, nullptr},
    {"wait", wait_handle, METH_O, nullptr},
    {"carry_out", as_method(carry_out), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"put", put_handle, METH_O, nullptr},
    {"take", take_handle, METH_O, nullptr},
    {"get", get_handle, METH_O, nullptr},
    {"forget_engine", forget_engine, METH_NOARGS, nullptr},
    {"clear", clear_handles, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
}};

}  // namespace

void bind_handles(py::module_& m) {
  static std::array<PyType_Slot, 4> slots = {{
      {Py_tp_new, reinterpret_cast<void*>(make_handles)},
      {Py_tp_dealloc, reinterpret_cast<void*>(destroy_handles)},
      {Py_tp_methods, handles_methods.data()},
      {0, nullptr},
  }};
  static PyType_Spec spec = {"gradred._core.Handles", sizeof(Object), 0, Py_TPFLAGS_DEFAULT,
                             slots.data()};
  const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  m.attr("Handles") = type;
}

}  // namespace gradred
