// Named operations, on which the front ends for deep learning are built.
#include "python/py_named.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/free_blocks.h"
#include "base/signature.h"
#include "comm/communicator.h"
#include "engine/fork_guard.h"
#include "named/kernel_calls.h"
#include "python/device_arrays.h"
#include "python/gil.h"
#include "python/kept.h"
#include "python/method.h"
#include "python/mpi4py.h"
#include "python/names.h"
#include "python/one_thread.h"
#include "python/py_call.h"
#include "python/py_errors.h"
#include "python/tensors.h"
#include "python/wait_hook.h"
#include "reduce/wire.h"

namespace py = pybind11;

namespace gradred {
namespace {

template <class... Arguments>
std::shared_ptr<PyNamedRequest> make_request(Arguments&&... arguments) {
  return std::allocate_shared<PyNamedRequest>(PoolAllocator<PyNamedRequest>(),
                                              std::forward<Arguments>(arguments)...);
}

using Made = std::shared_ptr<PyNamedRequest>;

// How submissions of this thread wait for the end of their operation.
struct Waits {
  bool wanted = false;
  std::optional<double> seconds{};
};
thread_local Waits waits;

class WithWaits {
 public:
  explicit WithWaits(Waits wanted) : before_(std::exchange(waits, wanted)) {}
  ~WithWaits() { waits = before_; }
  WithWaits(const WithWaits&) = delete;
  WithWaits& operator=(const WithWaits&) = delete;

 private:
  const Waits before_;
};

Made waited_for(Made made) {
  if (!waits.wanted) return made;
  const std::optional<double> seconds = waits.seconds;
  const WithWaits none({});  // a callback that runs during the wait may submit operations
  made->wait_in_submission(seconds);
  return made;
}

// call_with_waits(seconds, function, ...)
PyObject* call_with_waits_method(PyObject*, PyObject* const* given, Py_ssize_t count,
                                 PyObject* names) {
  if (count < 2) {
    PyErr_SetString(PyExc_TypeError, "call_with_waits takes seconds and a function");
    return nullptr;
  }
  std::optional<double> seconds;
  if (given[0] != Py_None) {
    seconds = PyFloat_AsDouble(given[0]);
    if (*seconds == -1.0 && PyErr_Occurred() != nullptr) return nullptr;
  }
  return call_with_waits(seconds, given[1], given + 2, count - 2, names);
}

PyMethodDef call_with_waits_def = {"call_with_waits", as_method(call_with_waits_method),
                                   METH_FASTCALL | METH_KEYWORDS, nullptr};

void add(Submission& what, std::vector<NamedArray>& arrays, const py::tuple& described,
         RecordedEvents& events) {
  const auto shape = described[3].cast<std::vector<std::int64_t>>();
  NamedArray array;
  array.in.data = reinterpret_cast<const void*>(described[0].cast<std::uintptr_t>());
  array.out.data = reinterpret_cast<void*>(described[1].cast<std::uintptr_t>());
  if (described.size() > 4) array.out_bytes = described[4].cast<std::size_t>();
  if (described.size() > 5 && !described[5].is_none()) {
    const auto where = described[5].cast<Placement>();
    array.on_device = true;
    array.in.memory = memory_of(where.send);
    array.out.memory = memory_of(where.recv);
    array.after = where.after_all(events);
  }
  array.dtype = dtype_named(described[2].cast<std::string>());
  array.count = 1;
  for (const std::int64_t length : shape) array.count *= static_cast<std::size_t>(length);
  std::vector<int> order;
  if (described.size() > 6) order = described[6].cast<std::vector<int>>();
  add_array(what, arrays, std::move(array), shape, order);
}

std::optional<ShapedArray> placed_tensor(PyObject* object) {
  auto view = tensor_view(object);
  if (!view || is_negated(object)) return std::nullopt;
  if (!view->stream) return view;  // it is in host memory
  view->memory = device_memory_at(view->data, view->count * size_of(view->dtype));
  return view->memory != nullptr ? view : std::nullopt;
}

// The object that keeps a tensor's memory alive, even after `x.data = y` replaces that memory.
py::object storage_of(PyObject* tensor) {
  static PyObject* const name = PyUnicode_InternFromString("untyped_storage");
  PyObject* const found = PyObject_CallMethodNoArgs(tensor, name);
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

// A shape as the ranks compare it, at most that of a tensor.
struct ComparedShape {
  std::array<std::int64_t, ShapedArray::kMostAxes> all{};
  std::size_t axes = 0;

  std::span<const std::int64_t> lengths() const { return {all.data(), axes}; }
};

// Returns nullopt if the result does not fit, or if both use memory so that neither may be written
// while the other one is read.
std::optional<ComparedShape> shape_for(NamedKind kind, const ShapedArray& from,
                                       const ShapedArray& to, const NamedOperations& all) {
  const auto size = static_cast<std::size_t>(all.size());
  const auto in_count = static_cast<std::int64_t>(from.count);
  const auto out_count = static_cast<std::int64_t>(to.count);
  const auto* const in = static_cast<const std::byte*>(from.data);
  const auto* const out = static_cast<const std::byte*>(to.data);
  const std::size_t in_bytes = from.count * size_of(from.dtype);
  const bool apart = in + in_bytes <= out || out + to.count * size_of(to.dtype) <= in;
  const bool is_empty = from.count == 0 || to.count == 0;
  switch (kind) {
    case NamedKind::kAllgather: {
      const bool in_place = in == out + static_cast<std::size_t>(all.rank()) * in_bytes;
      if (is_empty || to.count != size * from.count || !(apart || in_place)) return std::nullopt;
      return ComparedShape{{1, in_count}, 2};
    }
    case NamedKind::kReduceScatter:
      if (is_empty || from.count != size * to.count || !apart) return std::nullopt;
      return ComparedShape{{all.size(), out_count}, 2};
    case NamedKind::kBroadcast:
      return ComparedShape{{in_count}, 1};
    default:
      if (to.count != from.count) return std::nullopt;
      return ComparedShape{from.lengths, from.axes};
  }
}

PyObject* submit_tensor_method(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (count != 9) {
    PyErr_SetString(PyExc_TypeError, "submit_tensor takes 9 arguments");
    return nullptr;
  }
  try {
    const TensorCall how{.op = op_named(text_of(given[3])),
                         .prescale = number_of(given[4]),
                         .postscale = number_of(given[5]),
                         .priority = priority_of(given[6])};
    return py::cast(submit_tensor(py::handle(self).cast<NamedOperations&>(),
                                  std::string(text_of(given[0])), given[1], given[2], how,
                                  {given[7], given[8]}))
        .release()
        .ptr();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

// For a request without callbacks.
PyObject* wait_for_held(PyObject* self, PyObject*) {
  try {
    return py::handle(self).cast<PyNamedRequest&>().wait_for_held().release().ptr();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

PyMethodDef wait_for_held_def = {"wait_for_held", wait_for_held, METH_NOARGS, nullptr};

void add_method(py::object& type, PyMethodDef& method) {
  type.attr(method.ml_name) = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method));
}

PyMethodDef submit_tensor_def = {"submit_tensor", as_method(submit_tensor_method), METH_FASTCALL,
                                 nullptr};

Made submit(NamedOperations& self, const std::string& kind, const std::string& name,
            const py::sequence& described, const std::string& op, double prescale, double postscale,
            int root, const std::vector<std::int64_t>& splits, const py::object& held, int priority,
            std::string why_refused, const std::string& call, std::string structure,
            const py::object& counter, const py::object& number, const std::string& wire) {
  let_ended_go();
  const auto found = named_kind(kind);
  if (!found || *found == NamedKind::kJoin) {
    throw UsageError("'" + kind + "' is not a kind of named operation");
  }
  const auto found_call = named_call(call);
  if (!found_call) throw UsageError("'" + call + "' is not a call of named operations");
  Submission what;
  what.kind = *found;
  what.call = *found_call;
  what.op = op_named(op);
  what.prescale = prescale;
  what.postscale = postscale;
  what.root = root;
  what.priority = priority;
  what.wire = wire_named(wire);
  if (!structure.empty()) what.structure = mix(1, structure);
  std::vector<NamedArray> arrays;
  arrays.reserve(described.size());
  RecordedEvents events;
  for (const py::handle one : described) add(what, arrays, one.cast<py::tuple>(), events);
  finish_arrays(what, arrays);
  const auto is_on_host = [](const NamedArray& one) { return one.count > 0 && !one.on_device; };
  if (what.on_device != 0 && std::ranges::any_of(arrays, is_on_host)) {
    throw UsageError(
        kind +
        ": some arrays are on a GPU and others in host memory. Submit those on GPUs by "
        "a name of their own");
  }
  auto made = make_request(self.submit(name, what, std::move(arrays), splits,
                                       {std::move(why_refused), std::move(structure)}),
                           held);
  CountedBy{counter.ptr(), number.ptr()}.take();
  return waited_for(std::move(made));
}

std::shared_ptr<NamedOperations> create(const py::object& comm, std::uint64_t most_fused_bytes,
                                        std::string title, const std::vector<int>& ranks) {
  Communicator& communicator = communicator_of(comm.ptr());
  if (!ranks.empty()) communicator.call_ranks(ranks);
  const OneThread one_thread(communicator);
  GilHook hook;
  auto made = NamedOperations::create(communicator.shared(), most_fused_bytes, hook);
  made->be_called(std::move(title));
  return made;
}

// The memory that the operation has allocated for results, as NumPy arrays of bytes.
py::list outputs_of(const PyNamedRequest& self) {
  py::list made;
  for (const NamedOutput& output : self.named().outputs) {
    auto* const owner = new std::shared_ptr<std::byte[]>(output.memory);
    const py::capsule base(
        owner, [](void* held) { delete static_cast<std::shared_ptr<std::byte[]>*>(held); });
    made.append(py::array_t<std::uint8_t>(static_cast<py::ssize_t>(output.bytes),
                                          reinterpret_cast<std::uint8_t*>(output.memory.get()),
                                          base));
  }
  return made;
}

std::string way_of(const NamedOperation& operation) {
  const bool is_known =
      operation.used_transport() != UsedTransport::kUnknown || operation.is_copied_to_host();
  return operation.ended() && is_known
             ? name_of(operation.used_transport(), operation.is_copied_to_host())
             : "";
}

}  // namespace

PyNamedRequest::PyNamedRequest(std::shared_ptr<NamedOperation> named, py::object held,
                               py::object memory)
    : PyOperation(named),
      named_(std::move(named)),
      held_(std::move(held)),
      memory_(std::move(memory)) {}

PyNamedRequest::~PyNamedRequest() {
  if (named_->ended() && !named_->holds_memory()) return;
  for (py::object* const one : {&held_, &memory_}) {
    if (*one) keep_until_ended(named_, one->release().ptr());
  }
}

py::object PyNamedRequest::wait_for_held() {
  ended() ? rethrow() : static_cast<void>(wait(std::nullopt));
  return held_;
}

void PyNamedRequest::wait_in_submission(std::optional<double> seconds) {
  if (named_->submission().on_device != 0) return;
  const std::uint64_t begin = now_ns();
  try {
    wait(seconds);
  } catch (const PythonError&) {
    throw;
  } catch (...) {
    if (!ended()) throw;
  }
  submission_waited_ns_ = now_ns() - begin;
}

void PyNamedRequest::wait_at_most(std::optional<double> seconds) {
  const std::uint64_t waited = std::exchange(submission_waited_ns_, 0);
  if (waited == 0) return PyOperation::wait_at_most(seconds);
  if (ended()) return rethrow();
  const double left = seconds ? std::max(0.0, *seconds - 1e-9 * static_cast<double>(waited)) : 0.0;
  if (!wait(seconds ? std::optional(left) : std::nullopt)) throw_late(*seconds);
}

PyObject* call_with_waits(std::optional<double> seconds, PyObject* function, PyObject* const* given,
                          Py_ssize_t count, PyObject* names) {
  if (waits.seconds) seconds = std::min(*waits.seconds, seconds.value_or(*waits.seconds));
  const WithWaits wanted({.wanted = true, .seconds = seconds});
  return PyObject_Vectorcall(function, given, static_cast<std::size_t>(count), names);
}

bool PyNamedRequest::wait_in_stream(std::uint64_t stream, std::optional<double> timeout) {
  require_rank();
  const std::uint64_t begin = now_ns();
  if (!named_->ended() && !wait_until_given(timeout)) throw_late(*timeout);
  if (named_->ended()) {
    wait(std::nullopt);  // calls callbacks, and throws its error
    return false;
  }
  const WithoutGil released;
  named_->precede(stream);
  if (timeout) named_->end_at(begin + static_cast<std::uint64_t>(1e9 * std::min(*timeout, 3e7)));
  engine().leave();
  return true;
}

std::string_view text_of(PyObject* object) {
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object, &length);
  if (text == nullptr) throw py::error_already_set();
  return {text, static_cast<std::size_t>(length)};
}

int priority_of(PyObject* object) {
  const long number = PyLong_AsLong(object);
  if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (number != static_cast<int>(number)) {
    throw UsageError("a priority of " + std::to_string(number) + " does not fit 32 bits");
  }
  return static_cast<int>(number);
}

void CountedBy::take() const {
  static PyObject* const taken = PyUnicode_InternFromString("taken");
  if (counter == nullptr || counter == Py_None) return;
  if (PyObject_SetAttr(counter, taken, number) != 0) throw PythonError();
}

double number_of(PyObject* object) {
  const double number = PyFloat_AsDouble(object);
  if (number == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

std::shared_ptr<PyNamedRequest> submit_tensor(NamedOperations& all, std::string name,
                                              PyObject* input, PyObject* result,
                                              const TensorCall& how, const CountedBy& counted) {
  const auto from = placed_tensor(input);
  if (!from) return nullptr;
  const auto to = result == input ? from : placed_tensor(result);
  if (!to || to->memory != from->memory || to->dtype != from->dtype) return nullptr;
  const auto shape = shape_for(how.kind, *from, *to, all);
  if (!shape) return nullptr;
  NamedArray array{.in = {from->data, memory_of(from->memory)},
                   .out = {to->data, memory_of(to->memory)},
                   .out_bytes = to->count * size_of(to->dtype),
                   .dtype = from->dtype,
                   .count = from->count};
  if (from->memory != nullptr) {
    try {
      const Placement placement{from->memory, to->memory, {{from->memory, *from->stream}}};
      RecordedEvents events;
      array.after = placement.after_all(events);
    } catch (const Error&) {  // the Python path raises it again
      return nullptr;
    }
    array.on_device = true;
  }
  Submission what;
  what.kind = how.kind;
  what.op = how.op;
  what.root = how.root;
  what.prescale = how.prescale;
  what.postscale = how.postscale;
  what.priority = how.priority;
  std::vector<NamedArray> arrays;
  arrays.reserve(1);
  add_array(what, arrays, std::move(array), shape->lengths());
  finish_arrays(what, arrays);
  let_ended_go();
  py::object memory = storage_of(result);
  if (result != input) memory = py::make_tuple(std::move(memory), storage_of(input));
  const bool keeps_tensor = how.kind == NamedKind::kBroadcast && how.root == all.rank();
  const bool is_made_for_it = how.kind == NamedKind::kAllreduce && result != input;
  if (!keeps_tensor && !is_made_for_it) tell_of_write(result);
  auto operation = all.submit(std::move(name), what, std::move(arrays), {});
  auto made = make_request(std::move(operation), py::reinterpret_borrow<py::object>(result),
                           std::move(memory));
  counted.take();
  return waited_for(std::move(made));
}

void bind_named(py::module_& m) {
  py::class_<PyNamedRequest, std::shared_ptr<PyNamedRequest>> request(m, "NamedRequest");
  add_method(request, wait_for_held_def);
  request.def("wait", &PyNamedRequest::wait_at_most, py::arg("timeout") = std::nullopt)
      .def("wait_in_stream", &PyNamedRequest::wait_in_stream, py::arg("stream"),
           py::arg("timeout") = std::nullopt)
      .def("done", &PyNamedRequest::test)
      .def(
          "add_done_callback",
          [](const py::object& self, const py::object& function) {
            self.cast<PyNamedRequest&>().add_done_callback(function, self);
          },
          py::arg("fn"))
      .def_property_readonly("name", [](const PyNamedRequest& self) { return self.named().key(); })
      .def_property_readonly("waits_for",
                             [](const PyNamedRequest& self) {
                               const WithoutGil released;
                               return self.named().waits_for();
                             })
      .def_property_readonly("way", [](const PyNamedRequest& self) { return way_of(self.named()); })
      .def_property_readonly("outputs", &outputs_of)
      .def_property_readonly("rows", [](const PyNamedRequest& self) { return self.named().rows; })
      .def_property_readonly("last_joined",
                             [](const PyNamedRequest& self) { return self.named().last_joined; });
  py::class_<Timeline, std::shared_ptr<Timeline>>(m, "Timeline")
      .def(py::init<int, bool>(), py::arg("file"), py::arg("mark_cycles"))
      .def_property_readonly("problem", &Timeline::problem);
  py::class_<NamedOperations, std::shared_ptr<NamedOperations>> all(m, "NamedOperations");
  add_method(all, submit_tensor_def);
  all.def(py::init(&create), py::arg("comm"), py::arg("most_fused_bytes"), py::arg("title") = "",
          py::arg("ranks") = std::vector<int>())
      .def("submit", &submit, py::arg("kind"), py::arg("name"), py::arg("arrays"),
           py::arg("op") = "sum", py::arg("prescale") = 1.0, py::arg("postscale") = 1.0,
           py::arg("root") = 0, py::arg("splits") = std::vector<std::int64_t>(),
           py::arg("held") = py::none(), py::arg("priority") = 0, py::arg("why_refused") = "",
           py::arg("call") = "", py::arg("structure") = "", py::arg("counter") = py::none(),
           py::arg("number") = 0, py::arg("wire") = "")
      .def("join", [](NamedOperations& self) { return make_request(self.join(), py::none()); })
      .def("write_to", &NamedOperations::write_to, py::arg("timeline"), py::arg("prefix") = "")
      .def("look_for_lost", &NamedOperations::look_for_lost, py::arg("where"))
      .def("let_streams_wait", &NamedOperations::let_streams_wait)
      .def("leave", &NamedOperations::close);
  // The address of a KernelCalls.
  m.def("kernel_calls", [] { return reinterpret_cast<std::uintptr_t>(&kernel_calls()); });
  const auto function =
      py::reinterpret_steal<py::object>(PyCFunction_NewEx(&call_with_waits_def, nullptr, nullptr));
  if (!function) throw py::error_already_set();
  m.attr("call_with_waits") = function;
  m.def("serve_kernels", &serve_kernels, py::arg("process_set"), py::arg("operations"));
}

}  // namespace gradred
