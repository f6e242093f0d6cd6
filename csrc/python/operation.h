// A non-blocking call in flight, as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "liveness/watchdog.h"
#include "memory/order.h"

namespace gradred {

class PyOperation {
 public:
  // `why_waits`: the host, for an operation that was to be in the order of a stream.
  explicit PyOperation(std::shared_ptr<StartedOperation> operation,
                       std::shared_ptr<StreamOrder> order = nullptr, std::string why_waits = {})
      : operation_(std::move(operation)),
        order_(std::move(order)),
        why_waits_(std::move(why_waits)) {}

  // Whether it has ended; says nothing of how. Who tests again and again waits as well: the time
  // limit counts from the first test.
  bool test();
  // Blocks, without the GIL, until it has ended; false where these seconds are over before. Throws
  // what ended it.
  bool wait(std::optional<double> seconds);
  // The same; throws WaitTimeout where the seconds are over.
  void wait_at_most(std::optional<double> seconds);
  // The same until the program's stream has the work, of one that is done in a stream. Throws what
  // has ended it before.
  void wait_until_given();
  void add_done_callback(const pybind11::object& function, const pybind11::object& argument);

  // Whether it gets on and ends while the host does something else, and streams can wait for it.
  bool in_stream_order() const;
  std::string why_host_waits() const;  // else
  // What `stream` is given from now on comes after the result. Of one in the order of a stream.
  void wait_stream(std::uint64_t stream);

  void rethrow() const { operation_->rethrow(); }
  bool ended() const { return operation_->ended(); }
  bool failed() const { return operation_->ended() && operation_->failed(); }
  bool holds_memory() const { return operation_->holds_memory(); }
  bool uses_mpi_request() const { return operation_->uses_mpi_request(); }
  mpi::Handle request() const { return operation_->request(); }  // null: there is none
  GeneralizedRequest& generalized_request() const { return operation_->generalized_request(); }

 private:
  struct Testing {
    std::mutex mutex;
    Watchdog watchdog;
  };

  void carry_on();

  std::shared_ptr<StartedOperation> operation_;
  const std::shared_ptr<StreamOrder> order_;  // null: the host's
  const std::string why_waits_;
  std::unique_ptr<Testing> testing_;
};

// Calls it; what it raises goes to sys.unraisablehook. Takes both references.
void call_once(PyObject* function, PyObject* argument);

void bind_operation(pybind11::module_& m);

}  // namespace gradred
