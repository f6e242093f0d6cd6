// A non-blocking call in flight, as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <optional>

#include "comm/communicator.h"
#include "liveness/watchdog.h"

namespace gradred {

class PyOperation {
 public:
  explicit PyOperation(std::shared_ptr<StartedOperation> operation)
      : operation_(std::move(operation)) {}

  // Whether it has ended; says nothing of how. Who tests again and again waits as well: the time
  // limit counts from the first test.
  bool test();
  // Blocks, without the GIL, until it has ended; false where these seconds are over before. Throws
  // what ended it.
  bool wait(std::optional<double> seconds);
  void add_done_callback(const pybind11::object& function, const pybind11::object& argument);

  void rethrow() const { operation_->rethrow(); }
  bool ended() const { return operation_->ended(); }
  bool failed() const { return operation_->ended() && operation_->failed(); }
  bool holds_memory() const { return operation_->holds_memory(); }
  bool uses_mpi_request() const { return operation_->uses_mpi_request(); }
  mpi::Handle request() const { return operation_->request(); }  // null: there is none

 private:
  struct Testing {
    std::mutex mutex;
    Watchdog watchdog;
  };

  void carry_on();

  std::shared_ptr<StartedOperation> operation_;
  std::unique_ptr<Testing> testing_;
};

// Calls it; what it raises goes to sys.unraisablehook. Takes both references.
void call_once(PyObject* function, PyObject* argument);

void bind_operation(pybind11::module_& m);

}  // namespace gradred
