// A call in flight, with the generalized request by which the MPI's own Wait and Test know it.
#pragma once

#include <atomic>
#include <memory>

#include "engine/generalized_request.h"
#include "engine/operation.h"
#include "liveness/watchdog.h"
#include "mpi/mpi.h"
#include "observe/observation.h"

namespace gradred {

class StartedOperation : public Operation {
 public:
  // MPI_REQUEST_NULL if there is none. The caller passes it to the MPI's Wait, Test or
  // Request_free.
  mpi::Handle request() const {
    return uses_mpi_request_ ? mpi_request_ : generalized_request_.handle();
  }
  GeneralizedRequest& generalized_request() { return generalized_request_; }
  // Gives the program the MPI's own request, for which the program waits by MPI functions. Returns
  // false if no single request stands for the whole operation.
  virtual bool use_mpi_request() { return false; }
  bool uses_mpi_request() const { return uses_mpi_request_; }
  // The program has called gradred's Test, which looks after the operation and has a watchdog of
  // its own.
  void tested() { tested_ns_.store(now_ns(), std::memory_order_relaxed); }
  // gradred reports to the program how the operation has ended.
  void reported() { generalized_request_.reported(); }
  // The program may be in the MPI's Wait, or may not wait: reports, and sets no time limit.
  void look_after() noexcept override;
  // After a failure: whether the MPI may still read and write the caller's memory.
  virtual bool holds_memory() const { return false; }
  // For an operation that is done on a stream of the program: whether all of its work has been
  // given to the stream. For others: whether the operation has ended.
  virtual bool is_given() const { return ended(); }
  // After a good end: what carried the data, and whether through copies in host memory.
  virtual UsedTransport used_transport() const { return UsedTransport::kMessages; }
  virtual bool is_copied_to_host() const { return false; }
  // Before the first advance(): what observes the operation; nullptr: nothing does.
  virtual void observe(std::shared_ptr<Observation> observation) {
    observation_ = std::move(observation);
    if (observation_ != nullptr && observation_->counts()) measure(observation_->start_ns());
  }
  Observation* observation() const { return observation_.get(); }

 protected:
  void on_end(bool well) noexcept override;  // completes the request

  void set_mpi_request(mpi::Handle request) {
    mpi_request_ = request;
    uses_mpi_request_ = true;
  }

  std::shared_ptr<Observation> observation_;

 private:
  GeneralizedRequest generalized_request_;
  mpi::Handle mpi_request_{};
  bool uses_mpi_request_ = false;
  std::atomic<std::uint64_t> tested_ns_{0};
  Watchdog flight_{Watchdog::Of::kFlight};
};

}  // namespace gradred
