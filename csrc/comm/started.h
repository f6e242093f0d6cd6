// A call in flight, with the generalized request by which the MPI's own Wait and Test know it.
#pragma once

#include <memory>

#include "comm/observation.h"
#include "engine/operation.h"
#include "mpi/mpi.h"

namespace gradred {

class StartedOperation : public Operation {
 public:
  // MPI_REQUEST_NULL where there is none. Who takes it hands it to the MPI's Wait, Test or
  // Request_free.
  mpi::Handle request() const { return request_; }
  void open_request(const std::shared_ptr<Operation>& self);
  // Before the first advance(): what follows the operation. Null: nobody.
  virtual void observe(std::shared_ptr<Observation> observation) {
    observation_ = std::move(observation);
  }
  Observation* observation() const { return observation_.get(); }

 protected:
  void on_end(bool well) noexcept override;  // completes the request

  std::shared_ptr<Observation> observation_;

 private:
  mpi::Handle request_ = mpi::get().is.request_null;
};

}  // namespace gradred
