// Which of gradred's calls an MPI can serve.
#include <climits>

#include "base/errors.h"
#include "base/kinds.h"
#include "by_mpi/mpi_operation.h"
#include "calls/mpi_handles.h"
#include "calls/settings.h"

namespace gradred {
namespace {

void check_operation(const Call& call) {
  if (mpi_handles(combined(call.op), call.dtype)) return;
  if (!mpi::get().handle_of(call.dtype)) {
    throw UsageError("the MPI underneath has no type " + std::string(name_of(call.dtype)) +
                     ": plan 'mpi' cannot serve this call");
  }
  if (is_users(call.op)) {
    throw UsageError("the MPI underneath does not know the program's own function " +
                     std::string(name_of(call.op)) +
                     ": plan 'mpi' cannot serve this call. Let gradred choose the plan");
  }
  throw UsageError("MPI has no operation '" + std::string(name_of(call.op)) +
                   "' on truth values: plan 'mpi' cannot serve this call. Use land, lor or lxor, "
                   "or let gradred choose the plan");
}

}  // namespace

bool mpi_reads_devices() {
  if (settings().mpi_reads_devices) return *settings().mpi_reads_devices;
  const auto query = mpi::get().call.Query_cuda_support;
  return query != nullptr && query() == 1;
}

void check_mpi_call(const Call& call) {
  if (reduces(call.kind)) check_operation(call);
  const bool cuts = reduces(call.kind) && can_be_cut(call.kind);
  if (!cuts && call.count * size_of(call.dtype) > INT_MAX) {
    throw UsageError("plan 'mpi' takes at most 2 GiB per rank here");
  }
}

}  // namespace gradred
