// The MPI's own blocking collective, for comparison; and which of gradred's calls an MPI can serve.
#include <algorithm>
#include <climits>
#include <cstring>

#include "base/errors.h"
#include "by_mpi/mpi_operation.h"
#include "calls/mpi_handles.h"
#include "calls/scaling.h"
#include "calls/settings.h"

namespace gradred {
namespace {

MpiHandles handles_for(const Call& call) {
  const Op op = combined(call.op);
  if (const auto handles = mpi_handles(op, call.dtype)) return *handles;
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

void* or_in_place(const void* send) {
  return send != kInPlace ? const_cast<void*>(send) : mpi::get().is.in_place;
}

void allreduce(const Call& call, mpi::Handle comm) {
  const mpi::Mpi& mpi = mpi::get();
  const MpiHandles handles = handles_for(call);
  const std::size_t element = size_of(call.dtype);
  auto* recv = static_cast<std::byte*>(call.out.data);
  bool in_place = call.in_place();
  if (call.op == Op::kPremul && call.count > 0) {
    if (!in_place) std::memcpy(recv, call.in.data, call.count * element);
    in_place = true;
    scale_input(call, recv, call.count);
  }
  for (std::size_t begin = 0; begin == 0 || begin < call.count; begin += kLargestMpiCount) {
    const std::size_t count = std::min(call.count - begin, kLargestMpiCount);
    const void* from =
        in_place ? kInPlace : static_cast<const std::byte*>(call.in.data) + begin * element;
    mpi.check(mpi.call.Allreduce(or_in_place(from), recv + begin * element, static_cast<int>(count),
                                 handles.type, handles.op, comm),
              "MPI_Allreduce");
  }
}

}  // namespace

bool mpi_reads_devices() {
  if (settings().mpi_reads_devices) return *settings().mpi_reads_devices;
  const auto query = mpi::get().call.Query_cuda_support;
  return query != nullptr && query() == 1;
}

void check_mpi_call(const Call& call) {
  const bool moves = call.kind == Kind::kAllgather || call.kind == Kind::kBcast;
  if (!moves) handles_for(call);
  if (call.kind != Kind::kAllreduce && call.count * size_of(call.dtype) > INT_MAX) {
    throw UsageError("plan 'mpi' takes at most 2 GiB per rank here");
  }
}

void run_on_mpi(const Call& call, int size, mpi::Handle comm) {
  const mpi::Mpi& mpi = mpi::get();
  const std::size_t bytes = call.count * size_of(call.dtype);
  check_mpi_call(call);
  switch (call.kind) {
    case Kind::kAllgather:
      mpi.check(
          mpi.call.Allgather(or_in_place(call.in.data), static_cast<int>(bytes), mpi.is.byte_type,
                             call.out.data, static_cast<int>(bytes), mpi.is.byte_type, comm),
          "MPI_Allgather");
      return;
    case Kind::kBcast:
      mpi.check(
          mpi.call.Bcast(call.out.data, static_cast<int>(bytes), mpi.is.byte_type, call.root, comm),
          "MPI_Bcast");
      return;
    default:
      allreduce(call, comm);
  }
  scale_result(call, call.out.data, call.count, size);
}

}  // namespace gradred
