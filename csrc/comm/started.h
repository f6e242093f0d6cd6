// A call in flight, with the generalized request by which the MPI's own Wait and Test know it.
#pragma once

#include <atomic>
#include <memory>

#include "comm/generalized_request.h"
#include "comm/observation.h"
#include "engine/operation.h"
#include "liveness/watchdog.h"
#include "mpi/mpi.h"

namespace gradred {

class StartedOperation : public Operation {
 public:
  // MPI_REQUEST_NULL where there is none. Who takes it hands it to the MPI's Wait, Test or
  // Request_free.
  mpi::Handle request() const {
    return uses_mpi_request_ ? mpi_request_ : generalized_request_.handle();
  }
  GeneralizedRequest& generalized_request() { return generalized_request_; }
  // Makes the MPI's own request that of the program, who waits for it by the MPI's functions; false
  // where there is none that stands for all of the operation.
  virtual bool use_mpi_request() { return false; }
  bool uses_mpi_request() const { return uses_mpi_request_; }
  // The program's own Test looks after it, and has a watchdog of its own.
  void tested() { tested_ns_.store(now_ns(), std::memory_order_relaxed); }
  // The program hears from gradred how it has ended: say_why() need not.
  void told() { told_.store(true, std::memory_order_relaxed); }
  bool is_told() const { return told_.load(std::memory_order_relaxed); }
  // The MPI's own Wait or Test ends with an error of the MPI's: prints what it means.
  void say_why() const noexcept;
  // The MPI's Wait may be waiting, or nobody: reports, and sets no limit.
  void look_after() noexcept override;
  // After a bad end: whether the MPI may still read and write the caller's memory.
  virtual bool holds_memory() const { return false; }
  // Whether nothing is left to be given to the program's stream, for one that is done there; of
  // others, whether it has ended.
  virtual bool is_given() const { return ended(); }
  // Of one that has ended well: by which way its data went, and whether through copies on the host.
  virtual Went went() const { return Went::kMessages; }
  virtual bool is_copied_to_host() const { return false; }
  // Before the first advance(): what follows the operation. Null: nobody.
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
  std::atomic<bool> told_{false};
  std::atomic<std::uint64_t> tested_ns_{0};
  Watchdog flight_{Watchdog::Of::kFlight};
};

}  // namespace gradred
