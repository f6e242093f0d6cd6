// The short way of torch.distributed's all_reduce, for a call that waits for it: one function from
// torch's arguments to the end of the operation. Whatever it does not serve goes to Python.
#include <Python.h>
#include <datetime.h>
#include <pybind11/pybind11.h>
#include <structmember.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "python/names.h"
#include "python/py_errors.h"
#include "python/py_named.h"
#include "python/tensors.h"

namespace py = pybind11;

namespace gradred {
namespace {

// What is the same for all groups. Never freed, as groups may live to the end of the process.
struct OfTorch {
  py::object tensor_type, options_type;
  std::vector<std::optional<Op>> ops;  // by the hash of torch's reduction
  py::object running;                  // its `callback` is the one that this thread runs
  py::object is_profiled;
  py::object done;  // the work of an operation that has ended
};
const OfTorch* of_torch = nullptr;

PyObject* interned_name(const char* name) {
  PyObject* const made = PyUnicode_InternFromString(name);
  if (made == nullptr) throw py::error_already_set();
  return made;
}

struct NamesOfGroups {
  PyObject* title = interned_name("_title");
  PyObject* engine = interned_name("_engine");
  PyObject* numbers = interned_name("_numbers");
  PyObject* limit = interned_name("_limit");
  PyObject* lock = interned_name("lock");
  PyObject* taken = interned_name("taken");
  PyObject* acquire = interned_name("acquire");
  PyObject* release = interned_name("release");
  PyObject* callback = interned_name("callback");
  PyObject* async_op = interned_name("asyncOp");
  PyObject* reduce_op = interned_name("reduceOp");
  PyObject* timeout = interned_name("timeout");
  PyObject* closer = interned_name("_allreduce");
  PyObject* late = interned_name("_late_work");
};

const NamesOfGroups& names_of_groups() {
  static const NamesOfGroups made;
  return made;
}

py::object attribute_of(py::handle object, PyObject* name) {
  PyObject* const found = PyObject_GetAttr(object.ptr(), name);
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

// The time limit in seconds: the options', or else the group's.
std::optional<double> limit_of_call(py::handle group, py::handle options) {
  const py::object own = attribute_of(options, names_of_groups().timeout);
  if (PyDelta_Check(own.ptr()) && PyDateTime_DELTA_GET_DAYS(own.ptr()) >= 0) {
    const double seconds = 86400.0 * PyDateTime_DELTA_GET_DAYS(own.ptr()) +
                           PyDateTime_DELTA_GET_SECONDS(own.ptr()) +
                           1e-6 * PyDateTime_DELTA_GET_MICROSECONDS(own.ptr());
    if (seconds > 0) return seconds;
  }
  const py::object limit = attribute_of(group, names_of_groups().limit);
  return limit.is_none() ? std::nullopt : std::optional(number_of(limit.ptr()));
}

std::optional<Op> reduction_of(py::handle options) {
  const Py_hash_t hash = PyObject_Hash(attribute_of(options, names_of_groups().reduce_op).ptr());
  if (hash == -1) throw py::error_already_set();
  const auto index = static_cast<std::size_t>(hash);
  return hash >= 0 && index < of_torch->ops.size() ? of_torch->ops[index] : std::nullopt;
}

// The lock of a group's numbers, unless another thread has it.
class NumbersLock {
 public:
  explicit NumbersLock(py::object lock) : lock_(std::move(lock)) {
    const std::array<PyObject*, 2> given = {lock_.ptr(), Py_False};
    PyObject* const got =
        PyObject_VectorcallMethod(names_of_groups().acquire, given.data(), 2, nullptr);
    if (got == nullptr) throw py::error_already_set();
    owns_ = got == Py_True;
    Py_DECREF(got);
  }
  ~NumbersLock() {
    if (!owns_) return;
    const py::error_scope kept;  // an error that passes through here
    Py_XDECREF(PyObject_CallMethodNoArgs(lock_.ptr(), names_of_groups().release));
  }
  NumbersLock(const NumbersLock&) = delete;
  NumbersLock& operator=(const NumbersLock&) = delete;
  bool owns() const { return owns_; }

 private:
  py::object lock_;
  bool owns_ = false;
};

// The one tensor of a list, if it is plain and in host memory; bools have other reductions.
PyObject* plain_tensor(PyObject* tensors) {
  if (!PyList_CheckExact(tensors) || PyList_GET_SIZE(tensors) != 1) return nullptr;
  PyObject* const tensor = PyList_GET_ITEM(tensors, 0);
  if (!Py_IS_TYPE(tensor, reinterpret_cast<PyTypeObject*>(of_torch->tensor_type.ptr()))) {
    return nullptr;
  }
  const auto view = tensor_view(tensor);
  return view && !view->stream && view->dtype != DType::kBool ? tensor : nullptr;
}

bool is_recorded_or_called_back() {
  const auto profiled =
      py::reinterpret_steal<py::object>(PyObject_CallNoArgs(of_torch->is_profiled.ptr()));
  if (!profiled) throw py::error_already_set();
  return profiled.ptr() != Py_False ||
         !attribute_of(of_torch->running, names_of_groups().callback).is_none();
}

// Submits the next operation of the group. nullptr: Python has to look more closely.
std::shared_ptr<PyNamedRequest> submitted(py::handle group, PyObject* tensor, Op op,
                                          const std::string& title) {
  const py::object numbers = attribute_of(group, names_of_groups().numbers);
  const NumbersLock locked(attribute_of(numbers, names_of_groups().lock));
  if (!locked.owns()) return nullptr;
  const long long number = attribute_of(numbers, names_of_groups().taken).cast<long long>() + 1;
  const py::int_ taken(number);
  const py::object engine = attribute_of(group, names_of_groups().engine);
  try {
    return submit_tensor(engine.cast<NamedOperations&>(),
                         "operation " + std::to_string(number) + " of group " + title, tensor,
                         tensor, {.op = op}, {numbers.ptr(), taken.ptr()});
  } catch (const UsageError&) {  // the closer look raises it again
    return nullptr;
  }
}

// Reduces, and returns the work. A null object: Python has to look more closely.
py::object reduced(PyObject* group, PyObject* tensors, PyObject* options) {
  if (!Py_IS_TYPE(options, reinterpret_cast<PyTypeObject*>(of_torch->options_type.ptr())))
    return {};
  const py::object title = attribute_of(group, names_of_groups().title);
  if (title.is_none() || attribute_of(options, names_of_groups().async_op).ptr() != Py_False)
    return {};
  PyObject* const tensor = plain_tensor(tensors);
  if (tensor == nullptr) return {};
  const auto op = reduction_of(options);
  if (!op || is_recorded_or_called_back()) return {};
  const auto limit = limit_of_call(group, options);
  const auto held = py::reinterpret_borrow<py::object>(tensor);
  const auto request = submitted(group, tensor, *op, std::string(text_of(title.ptr())));
  if (request == nullptr) return {};
  request->wait_in_submission(limit);
  if (request->ended() && !request->failed()) return of_torch->done;
  return py::handle(group).attr(names_of_groups().late)(request, held, py::handle(options));
}

// allreduce(group, tensors, options)
PyObject* allreduce_of_group(PyObject*, PyObject* const* given, std::size_t flags,
                             PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  try {
    if (count == 3 && names == nullptr) {
      py::object work = reduced(given[0], given[1], given[2]);
      if (work) return work.release().ptr();
    }
    return PyObject_VectorcallMethod(names_of_groups().closer, given,
                                     static_cast<std::size_t>(count), names);
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

// A method of a class of Python. It is a type of its own, as torch's C++ does not take functions of
// C for methods that replace its own.
struct GroupAllreduce {
  PyObject_HEAD  //
      vectorcallfunc call;
};

PyObject* method_of_group(PyObject* self, PyObject* group, PyObject*) {
  return group == nullptr ? Py_NewRef(self) : PyMethod_New(self, group);
}

std::array<PyMemberDef, 2> group_allreduce_members = {
    {{"__vectorcalloffset__", T_PYSSIZET, offsetof(GroupAllreduce, call), READONLY, nullptr},
     {nullptr, 0, 0, 0, nullptr}}};

py::object make_group_allreduce() {
  static std::array<PyType_Slot, 5> slots = {{
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_descr_get, reinterpret_cast<void*>(method_of_group)},
      {Py_tp_members, group_allreduce_members.data()},
      {Py_tp_doc, const_cast<char*>(
                      "Reduce over all ranks, in place; at once where the program waits for it.")},
      {0, nullptr},
  }};
  static PyType_Spec spec = {
      "gradred._core.GroupAllreduce", sizeof(GroupAllreduce), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots.data()};
  const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  auto made = py::reinterpret_steal<py::object>(
      PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type.ptr()), 0));
  if (!made) throw py::error_already_set();
  reinterpret_cast<GroupAllreduce*>(made.ptr())->call = allreduce_of_group;
  return made;
}

// Returns the method `allreduce` of torch's groups.
py::object group_allreduce(py::object tensor_type, py::object options_type, const py::dict& ops,
                           py::object running, py::object is_profiled, py::object done) {
  if (PyDateTimeAPI == nullptr) PyDateTime_IMPORT;
  std::vector<std::optional<Op>> by_hash;
  for (const auto& [hash, name] : ops) {
    const auto index = hash.cast<std::size_t>();
    if (by_hash.size() <= index) by_hash.resize(index + 1);
    by_hash[index] = op_named(name.cast<std::string>());
  }
  of_torch = new OfTorch{std::move(tensor_type), std::move(options_type), std::move(by_hash),
                         std::move(running),     std::move(is_profiled),  std::move(done)};
  return make_group_allreduce();
}

}  // namespace

void bind_group_allreduce(py::module_& m) {
  m.def("group_allreduce", &group_allreduce, py::arg("tensor_type"), py::arg("options_type"),
        py::arg("ops"), py::arg("running"), py::arg("is_profiled"), py::arg("done"));
}

}  // namespace gradred
