// The short way of torch.distributed's collectives on plain tensors, for calls that wait for them:
// one function from torch's arguments to the end of the operation. Whatever it does not serve goes
// to Python.
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
  py::object tensor_type;
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
  PyObject* root_rank = interned_name("rootRank");
  PyObject* timeout = interned_name("timeout");
  PyObject* work = interned_name("_work");
  PyObject* kind = interned_name("kind");
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

// A method of a class of Python. It is a type of its own, as torch's C++ does not take functions of
// C for methods that replace its own.
struct GroupMethod {
  PyObject_HEAD  //
      vectorcallfunc call;
  NamedKind kind;
  PyObject* options_type;
  PyObject* name;    // as works know their method
  PyObject* closer;  // the name of the method that serves all calls
};

// A tensor that is plain and in host memory. nullptr: it is not, or bools have other reductions.
PyObject* plain_tensor(PyObject* tensor, bool reduces) {
  if (!Py_IS_TYPE(tensor, reinterpret_cast<PyTypeObject*>(of_torch->tensor_type.ptr()))) {
    return nullptr;
  }
  const auto view = tensor_view(tensor);
  if (!view || view->stream || (reduces && view->dtype == DType::kBool)) return nullptr;
  return tensor;
}

// The tensors of a call, and torch's options.
struct Given {
  PyObject* input = nullptr;  // nullptr: Python has to look more closely
  PyObject* result = nullptr;
  PyObject* options = nullptr;
};

// Arguments are ([tensor], options), or (output, input, options).
Given read_arguments(NamedKind kind, PyObject* const* given, Py_ssize_t count) {
  const bool reduces = kind == NamedKind::kAllreduce || kind == NamedKind::kReduceScatter;
  if (kind == NamedKind::kAllreduce || kind == NamedKind::kBroadcast) {
    if (count != 2 || !PyList_CheckExact(given[0]) || PyList_GET_SIZE(given[0]) != 1) return {};
    PyObject* const tensor = plain_tensor(PyList_GET_ITEM(given[0], 0), reduces);
    return {tensor, tensor, given[1]};
  }
  if (count != 3 || plain_tensor(given[0], reduces) == nullptr) return {};
  return {plain_tensor(given[1], reduces), given[0], given[2]};
}

bool is_recorded_or_called_back() {
  const auto profiled =
      py::reinterpret_steal<py::object>(PyObject_CallNoArgs(of_torch->is_profiled.ptr()));
  if (!profiled) throw py::error_already_set();
  return profiled.ptr() != Py_False ||
         !attribute_of(of_torch->running, names_of_groups().callback).is_none();
}

// Submits the next operation of the group. nullptr: Python has to look more closely.
std::shared_ptr<PyNamedRequest> submitted(py::handle group, const Given& given,
                                          const TensorCall& how, const std::string& title) {
  const py::object numbers = attribute_of(group, names_of_groups().numbers);
  const NumbersLock locked(attribute_of(numbers, names_of_groups().lock));
  if (!locked.owns()) return nullptr;
  const long long number = attribute_of(numbers, names_of_groups().taken).cast<long long>() + 1;
  const py::int_ taken(number);
  const py::object engine = attribute_of(group, names_of_groups().engine);
  try {
    return submit_tensor(engine.cast<NamedOperations&>(),
                         "operation " + std::to_string(number) + " of group " + title, given.input,
                         given.result, how, {numbers.ptr(), taken.ptr()});
  } catch (const UsageError&) {  // the closer look raises it again
    return nullptr;
  }
}

std::optional<TensorCall> call_of(NamedKind kind, py::handle options) {
  TensorCall how{.kind = kind};
  if (kind == NamedKind::kBroadcast) {
    how.root = attribute_of(options, names_of_groups().root_rank).cast<int>();
  } else if (kind != NamedKind::kAllgather) {
    const auto op = reduction_of(options);
    if (!op) return std::nullopt;
    how.op = *op;
  }
  return how;
}

// The work of an operation that has failed, or outlasted its time limit.
py::object late_work(const GroupMethod& method, py::handle group,
                     const std::shared_ptr<PyNamedRequest>& request, const Given& given) {
  py::list requests, results;
  requests.append(request);
  results.append(py::handle(given.result));
  py::object work = group.attr(names_of_groups().work)(requests, py::none(), results,
                                                       py::handle(given.options), /*placed=*/false,
                                                       /*written=*/py::list());
  work.attr(names_of_groups().kind) = py::handle(method.name);
  return work;
}

// Carries the call out, and returns the work. A null object: Python has to look more closely.
py::object carried_out(const GroupMethod& method, py::handle group, const Given& given) {
  if (given.input == nullptr ||
      !Py_IS_TYPE(given.options, reinterpret_cast<PyTypeObject*>(method.options_type))) {
    return {};
  }
  const py::object title = attribute_of(group, names_of_groups().title);
  if (title.is_none() || attribute_of(given.options, names_of_groups().async_op).ptr() != Py_False)
    return {};
  const auto how = call_of(method.kind, given.options);
  if (!how || is_recorded_or_called_back()) return {};
  const auto request = submitted(group, given, *how, std::string(text_of(title.ptr())));
  if (request == nullptr) return {};
  constexpr double kUsualSeconds = 1e-3;  // reading the time limit takes longer than most waits
  request->wait_in_submission(kUsualSeconds);
  if (!request->ended()) request->wait_in_submission(limit_of_call(group, given.options));
  if (request->ended() && !request->failed()) return of_torch->done;
  return late_work(method, group, request, given);
}

// method(group, ..., options)
PyObject* call_group_method(PyObject* self, PyObject* const* given, std::size_t flags,
                            PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  const auto& method = *reinterpret_cast<const GroupMethod*>(self);
  try {
    if (count > 1 && names == nullptr) {
      const Given read = read_arguments(method.kind, given + 1, count - 1);
      py::object work = carried_out(method, given[0], read);
      if (work) return work.release().ptr();
    }
    return PyObject_VectorcallMethod(method.closer, given, static_cast<std::size_t>(count), names);
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

PyObject* method_of_group(PyObject* self, PyObject* group, PyObject*) {
  return group == nullptr ? Py_NewRef(self) : PyMethod_New(self, group);
}

std::array<PyMemberDef, 2> group_method_members = {
    {{"__vectorcalloffset__", T_PYSSIZET, offsetof(GroupMethod, call), READONLY, nullptr},
     {nullptr, 0, 0, 0, nullptr}}};

py::object make_group_method_type() {
  static std::array<PyType_Slot, 5> slots = {{
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_descr_get, reinterpret_cast<void*>(method_of_group)},
      {Py_tp_members, group_method_members.data()},
      {Py_tp_doc, const_cast<char*>("A collective, at once where the program waits for it.")},
      {0, nullptr},
  }};
  static PyType_Spec spec = {
      "gradred._core.GroupMethod", sizeof(GroupMethod), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots.data()};
  const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  return type;
}

void know_groups(py::object tensor_type, const py::dict& ops, py::object running,
                 py::object is_profiled, py::object done) {
  if (PyDateTimeAPI == nullptr) PyDateTime_IMPORT;
  std::vector<std::optional<Op>> by_hash;
  for (const auto& [hash, name] : ops) {
    const auto index = hash.cast<std::size_t>();
    if (by_hash.size() <= index) by_hash.resize(index + 1);
    by_hash[index] = op_named(name.cast<std::string>());
  }
  of_torch = new OfTorch{std::move(tensor_type), std::move(by_hash), std::move(running),
                         std::move(is_profiled), std::move(done)};
}

// Returns a method of torch's groups, which lives as long as the process.
py::object group_method(const std::string& kind, py::object options_type, const std::string& name,
                        const std::string& closer) {
  static const auto type = make_group_method_type().release();
  auto made = py::reinterpret_steal<py::object>(
      PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type.ptr()), 0));
  if (!made) throw py::error_already_set();
  auto& method = *reinterpret_cast<GroupMethod*>(made.ptr());
  method.call = call_group_method;
  method.kind = named_kind(kind).value();
  method.options_type = options_type.release().ptr();
  method.name = interned_name(name.c_str());
  method.closer = interned_name(closer.c_str());
  return made;
}

}  // namespace

void bind_group_methods(py::module_& m) {
  m.def("know_groups", &know_groups, py::arg("tensor_type"), py::arg("ops"), py::arg("running"),
        py::arg("is_profiled"), py::arg("done"));
  m.def("group_method", &group_method, py::arg("kind"), py::arg("options_type"), py::arg("name"),
        py::arg("closer"));
}

}  // namespace gradred
