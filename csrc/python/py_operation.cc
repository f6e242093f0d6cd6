#include "python/py_operation.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "engine/driving.h"
#include "engine/fork_guard.h"
#include "python/gil.h"
#include "python/kept.h"
#include "python/mpi4py.h"
#include "python/py_errors.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

// None: no limit. A limit of a year is the maximum, so that the sum does not overflow.
std::uint64_t deadline_in(std::optional<double> seconds) {
  if (!seconds) return UINT64_MAX;
  return now_ns() + static_cast<std::uint64_t>(1e9 * std::clamp(*seconds, 0.0, 3e7));
}

// The waiting thread checks the device, as the thread that advances the operation must not.
class OrderHook final : public WaitHook {
 public:
  OrderHook(RequestHook& hook, StreamOrder* order) : hook_(hook), order_(order) {}

  void waiting() override {
    hook_.waiting();
    if (order_ == nullptr) return;
    constexpr std::uint64_t kEveryNs = 50'000'000;
    const std::uint64_t now = now_ns();
    if (next_look_ns_ == 0) next_look_ns_ = now + kEveryNs;
    if (now < next_look_ns_) return;
    next_look_ns_ = now + kEveryNs;
    order_->check();
  }
  void long_work() override { hook_.long_work(); }

 private:
  RequestHook& hook_;
  StreamOrder* const order_;
  std::uint64_t next_look_ns_ = 0;
};

// Waits until another operation's work is enqueued in the program's stream.
class Giving final : public Operation {
 public:
  explicit Giving(StartedOperation& given) : given_(given) {}
  std::string waiter() const override { return given_.waiter(); }
  std::string waits_for() const override { return given_.waits_for(); }
  bool is_first_to_wait() const override { return given_.is_first_to_wait(); }
  WaitRecord wait_record() const override { return given_.wait_record(); }
  bool spins() const override { return given_.spins(); }

 private:
  bool step() override {
    if (given_.is_given()) return true;
    const Progress progress = given_.advance(caller());
    if (!progress) stop_at(progress);
    return given_.is_given();
  }
  void give_up(const std::exception_ptr& reason) noexcept override { given_.abandon(reason); }
  void withdraw() noexcept override {}

  StartedOperation& given_;
};

}  // namespace

// Saves a pending Python error first, and restores it at the end.
void call_once(PyObject* function, PyObject* argument) {
  PyObject *kind = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &error, &trace);
  PyObject* const result = PyObject_CallOneArg(function, argument);
  if (result == nullptr) PyErr_WriteUnraisable(function);
  Py_XDECREF(result);
  Py_DECREF(function);
  Py_DECREF(argument);
  PyErr_Restore(kind, error, trace);
}

PyOperation::~PyOperation() {
  let_go();
  if (memory_) keep_until_ended(std::move(operation_), memory_.release().ptr());
}

void PyOperation::hold(py::object memory) {
  let_ended_go();
  memory_ = std::move(memory);
}

void PyOperation::let_go() {
  if (operation_->ended() && !operation_->holds_memory()) memory_ = {};
}

bool PyOperation::test() {
  require_rank();
  const DoneCallbacks::Waiter waiter(operation_.get());
  if (!operation_->ended()) {
    const InCall in_call(operation_->observation());
    if (!testing_) testing_ = std::make_unique<Testing>();
    const WithoutGil released;
    if (!operation_->advance()) carry_on();
  }
  done_callbacks().call_without_threads();
  if (!operation_->ended()) return false;
  operation_->call_callbacks();
  {
    GilHook hook;
    count_operation(hook);
  }
  operation_->reported();
  let_go();
  return true;
}

bool PyOperation::wait(std::optional<double> seconds) {
  const bool ended = wait_until_ended(seconds);
  if (!ended) return false;
  let_go();
  operation_->rethrow();
  return true;
}

bool PyOperation::wait_until_ended(std::optional<double> seconds) {
  require_rank();
  const std::uint64_t deadline = deadline_in(seconds);
  const DoneCallbacks::Waiter waiter(operation_.get());
  const InCall in_call(operation_->ended() ? nullptr : operation_->observation());
  RequestHook with_gil;
  OrderHook hook(with_gil, order_.get());
  count_operation(hook);
  operation_->reported();
  const bool ended = wait_until(*operation_, hook, deadline);
  if (!ended) return false;
  operation_->call_callbacks();
  done_callbacks().call_without_threads();
  return true;
}

void PyOperation::wait_at_most(std::optional<double> timeout) {
  if (!wait(timeout)) throw_late(*timeout);
}

void PyOperation::throw_late(double timeout) const {
  std::string seconds = std::to_string(timeout);
  seconds.erase(seconds.find_last_not_of('0') + 1);
  if (seconds.back() == '.') seconds.pop_back();
  throw WaitTimeout("wait of " + seconds + " s for " + operation_->waits_for() +
                    ": it goes on. See what that rank does, and wait again or for longer");
}

void PyOperation::wait_until_given() {
  wait_until_given(std::nullopt);
  if (operation_->ended()) operation_->rethrow();
}

bool PyOperation::wait_until_given(std::optional<double> seconds) {
  const std::uint64_t deadline = deadline_in(seconds);
  const InCall in_call(operation_->ended() ? nullptr : operation_->observation());
  RequestHook with_gil;
  OrderHook hook(with_gil, order_.get());
  Giving giving(*operation_);
  return wait_until(giving, hook, deadline);
}

void PyOperation::add_done_callback(const py::object& function, const py::object& argument) {
  require_rank();
  if (!operation_->ended() && thread_may_drive()) done_callbacks().use_threads();
  PyObject* const called = py::object(function).release().ptr();
  PyObject* const given = py::object(argument).release().ptr();
  operation_->when_ended([called, given] { with_gil([&] { call_once(called, given); }); });
}

bool PyOperation::in_stream_order() const {
  return order_ != nullptr &&
         (order_->stream() || operation_->ended() || may_be_driven_by_thread(*operation_));
}

std::string PyOperation::why_host_waits() const {
  if (in_stream_order()) return {};
  if (order_ == nullptr) return why_waits_;
  return settings().progress_thread
             ? "the data go by messages, and the MPI lets no thread of gradred's carry them on: "
               "initialise it with THREAD_MULTIPLE"
             : "GRADRED_PROGRESS_THREAD is off";
}

void PyOperation::wait_stream(std::uint64_t stream) {
  const WithoutGil released;
  order_->precede(stream);
}

void PyOperation::carry_on() {
  try {
    drive_if_due();  // operations before it may have to advance first
    if (operation_->ended()) return;
    operation_->tested();
    const std::unique_lock lock(testing_->mutex, std::try_to_lock);
    if (!lock.owns_lock()) return;  // another thread tests it as well
    if (order_ != nullptr) order_->check();
    testing_->watchdog.check(AboutOperation{*operation_});
  } catch (const TransportError&) {  // the time limit is over, or MPI has failed
    operation_->abandon(std::current_exception());
  } catch (const DeviceError&) {
    operation_->abandon(std::current_exception());
  }
}

void bind_operation(py::module_& m) {
  py::class_<PyOperation, std::shared_ptr<PyOperation>>(m, "Operation")
      .def("test", &PyOperation::test)
      .def("wait", &PyOperation::wait, py::arg("seconds") = std::nullopt)
      .def("wait_stream", &PyOperation::wait_stream, py::arg("stream"))
      .def_property_readonly("in_stream_order", &PyOperation::in_stream_order)
      .def_property_readonly("why_host_waits", &PyOperation::why_host_waits)
      .def("add_done_callback", &PyOperation::add_done_callback, py::arg("function"),
           py::arg("argument"))
      .def("hold", &PyOperation::hold, py::arg("memory"))
      .def("rethrow", &PyOperation::rethrow)
      .def_property_readonly("ended", &PyOperation::ended)
      .def_property_readonly("failed", &PyOperation::failed)
      .def_property_readonly("holds_memory", &PyOperation::holds_memory)
      .def_property_readonly("uses_mpi_request", &PyOperation::uses_mpi_request)
      .def_property_readonly("request", [](const PyOperation& self) {
        const mpi::Handle request = self.request();
        return request == mpi::get().is.request_null ? std::nullopt : std::optional(request);
      });
}

}  // namespace gradred
