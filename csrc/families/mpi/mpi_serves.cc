// Which of gradred's calls an MPI can serve.
#include <climits>

#include "base/errors.h"
#include "base/kinds.h"
#include "calls/settings.h"
#include "families/mpi/mpi_operation.h"

namespace gradred {
bool mpi_reads_devices() {
  if (settings().mpi_reads_devices) return *settings().mpi_reads_devices;
  const auto query = mpi::get().call.Query_cuda_support;
  return query != nullptr && query() == 1;
}

void check_mpi_call(const Call& call) {
  const bool cuts = reduces(call.kind) && can_be_cut(call.kind);
  if (!cuts && call.count * size_of(call.dtype) > INT_MAX) {
    throw UsageError("plan 'mpi' takes at most 2 GiB per rank here");
  }
}

}  // namespace gradred
