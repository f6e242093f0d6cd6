// A nonblocking call in flight that Python code holds.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "liveness/watchdog.h"
#include "memory/stream_order.h"

namespace gradred {

class PyOperation {
 public:
  // `why_waits`: why the host has to wait for an operation that should follow a stream's order.
  explicit PyOperation(std::shared_ptr<StartedOperation> operation,
                       std::shared_ptr<StreamOrder> order = nullptr, std::string why_waits = {})
      : operation_(std::move(operation)),
        order_(std::move(order)),
        why_waits_(std::move(why_waits)) {}
  ~PyOperation();
  PyOperation(const PyOperation&) = delete;
  PyOperation& operator=(const PyOperation&) = delete;

  // Keeps an object alive as long as the operation may use its memory, also after this one.
  void hold(pybind11::object memory);

  // Whether the operation has ended, with or without an error. Repeated tests count as a wait: the
  // time limit starts with the first test.
  bool test();
  // Blocks without the GIL until the operation has ended, and throws its error. Returns false if
  // the time is over before.
  bool wait(std::optional<double> seconds);
  // Same, but throws WaitTimeout if the time is over.
  void wait_at_most(std::optional<double> seconds);
  // Blocks until the work is enqueued in the program's stream. For an operation done in a stream.
  // Throws the error of an operation that has failed before.
  void wait_until_given();
  // The same with a time limit, but throws no error of the operation. Returns false if the time is
  // over before.
  bool wait_until_given(std::optional<double> seconds);
  [[noreturn]] void throw_late(double seconds) const;
  void add_done_callback(const pybind11::object& function, const pybind11::object& argument);

  // Whether it makes progress and ends while the host does something else, and streams can wait for
  // it.
  bool in_stream_order() const;
  std::string why_host_waits() const;  // empty if in_stream_order()
  // Makes later work of `stream` wait for the result. For an operation in the order of a stream.
  void wait_stream(std::uint64_t stream);

  void rethrow() const { operation_->rethrow(); }
  bool ended() const { return operation_->ended(); }
  bool failed() const { return operation_->ended() && operation_->failed(); }
  bool holds_memory() const { return operation_->holds_memory(); }
  bool uses_mpi_request() const { return operation_->uses_mpi_request(); }
  mpi::Handle request() const { return operation_->request(); }  // null request: it has none
  const std::shared_ptr<StartedOperation>& started() const { return operation_; }
  GeneralizedRequest& generalized_request() const { return operation_->generalized_request(); }

 private:
  struct Testing {
    std::mutex mutex;
    Watchdog watchdog;
  };

  bool wait_until_ended(std::optional<double> seconds);
  void carry_on();
  void let_go();  // of the memory, if nothing uses it any more

  std::shared_ptr<StartedOperation> operation_;
  const std::shared_ptr<StreamOrder> order_;  // nullptr: not in the order of a stream
  const std::string why_waits_;
  std::unique_ptr<Testing> testing_;
  pybind11::object memory_;
};

// Calls a function. Its exception goes to sys.unraisablehook. Takes both references.
void call_once(PyObject* function, PyObject* argument);

void bind_operation(pybind11::module_& m);

}  // namespace gradred
