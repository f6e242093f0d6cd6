#include "engine/notices/closing.h"

#include <cstring>
#include <exception>

#include "base/types.h"

namespace gradred {
namespace {

// Returns whether a request has ended; Test reports a request that has, which is null, as done.
bool is_complete(mpi::Handle& request) {
  const mpi::Mpi& mpi = mpi::get();
  int done = 0;
  mpi.check(mpi.call.Test(&request, &done, mpi.is.status_ignore), "MPI_Test");
  return done != 0;
}

}  // namespace

std::vector<std::uint64_t> NoticeCount::sent(int size) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size));
  for (const auto& [peer, count] : sent_) all[static_cast<std::size_t>(peer)] = count;
  return all;
}

bool Closing::advance() noexcept {
  try {
    return !failed_ && try_to_advance();
  } catch (const std::exception&) {
    failed_ = true;  // a peer has failed, for example: other calls report it
    return false;
  }
}

bool Closing::try_to_advance() {
  if (!started_) start();
  while (receive()) {
  }
  if (arriving_ || !is_complete(sum_) || notices_->received() < expected_) return false;
  mpi::get().check(mpi::get().call.Comm_free(&comm_), "MPI_Comm_free");
  return true;
}

void Closing::start() {
  started_ = true;
  const mpi::Mpi& mpi = mpi::get();
  int size = 0;
  mpi.check(mpi.call.Comm_size(comm_, &size), "MPI_Comm_size");
  sent_ = notices_->sent(size);
  const auto reduce_scatter =
      mpi.call.Ireductions[static_cast<std::size_t>(Kind::kReduceScatterBlock)];
  mpi.check(reduce_scatter(sent_.data(), &expected_, 1, mpi.is.uint64_type,
                           *mpi.handle_of(Op::kSum), comm_, &sum_),
            "MPI_Ireduce_scatter_block");
}

// Receives one notice if it has arrived; returns whether one has. The sender is the one that the
// probe has found, as in the operation log.
bool Closing::receive() {
  const mpi::Mpi& mpi = mpi::get();
  if (!arriving_) {
    alignas(16) std::array<std::byte, 64> status{};  // no MPI family has a larger status
    int there = 0, sender = 0;
    mpi.check(mpi.call.Iprobe(mpi.is.any_source, mpi.is.any_tag, comm_, &there, status.data()),
              "MPI_Iprobe");
    if (there == 0) return false;
    std::memcpy(&sender, status.data() + mpi.is.status_source, sizeof sender);
    arrival_ = 0;
    mpi.check(mpi.call.Irecv(notice_.data(), static_cast<int>(notice_.size()), mpi.is.byte_type,
                             sender, mpi.is.any_tag, comm_, &arrival_),
              "receiving what is left on a communicator");
    arriving_ = true;
  }
  if (!is_complete(arrival_)) return false;
  arriving_ = false;
  notices_->count_received();
  return true;
}

}  // namespace gradred
