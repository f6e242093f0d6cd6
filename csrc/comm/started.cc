#include "comm/started.h"

namespace gradred {
namespace {

using Shared = std::shared_ptr<Operation>;

// The MPI asks at completion; a failed operation fails the request.
int query(void* extra, void* status) {
  const mpi::Mpi& mpi = mpi::get();
  mpi.call.Status_set_elements(status, mpi.is.byte_type, 0);
  mpi.call.Status_set_cancelled(status, 0);
  return (*static_cast<Shared*>(extra))->failed() ? mpi.is.err_other : 0;
}

int release(void* extra) {
  const std::unique_ptr<Shared> owned(static_cast<Shared*>(extra));
  return 0;
}

int cancel(void*, int) { return 0; }  // a collective operation cannot be cancelled

}  // namespace

void StartedOperation::open_request(const std::shared_ptr<Operation>& self) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = 0;
  mpi.check(mpi.call.Grequest_start(query, release, cancel, new Shared(self), &request),
            "MPI_Grequest_start");
  request_ = mpi.normalise(request);
}

void StartedOperation::on_end(bool well) noexcept {
  if (observation_ != nullptr) observation_->end(well);
  const mpi::Mpi& mpi = mpi::get();
  if (request_ != mpi.is.request_null) mpi.call.Grequest_complete(request_);
}

}  // namespace gradred
