#include "notices/closing.h"

#include <cstring>
#include <exception>

namespace gradred {

void NoticeCount::count_sent(int peer) {
  const std::lock_guard lock(mutex_);
  ++sent_[peer];
}

void NoticeCount::count_received() {
  const std::lock_guard lock(mutex_);
  ++received_;
}

std::map<int, std::uint64_t> NoticeCount::sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

std::uint64_t NoticeCount::received() const {
  const std::lock_guard lock(mutex_);
  return received_;
}

Closing::Closing(mpi::Handle comm, std::shared_ptr<const NoticeCount> notices, int tag)
    : comm_(comm), notices_(std::move(notices)), tag_(tag) {}

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
  if (arriving_ || peers_that_tell_ > 0 || received_ < expected_ || !sent()) return false;
  mpi::get().check(mpi::get().call.Comm_free(&comm_), "MPI_Comm_free");
  return true;
}

void Closing::start() {
  started_ = true;
  const mpi::Mpi& mpi = mpi::get();
  int rank = 0, size = 0;
  mpi.check(mpi.call.Comm_rank(comm_, &rank), "MPI_Comm_rank");
  mpi.check(mpi.call.Comm_size(comm_, &size), "MPI_Comm_size");
  peers_that_tell_ = static_cast<std::size_t>(size - 1);
  received_ = notices_->received();
  told_.resize(static_cast<std::size_t>(size));
  for (const auto& [peer, count] : notices_->sent()) told_[static_cast<std::size_t>(peer)] = count;
  sends_.resize(told_.size());
  for (int peer = 0; peer < size; ++peer) {
    const auto i = static_cast<std::size_t>(peer);
    sends_[i] = mpi.is.request_null;
    if (peer == rank) continue;
    sends_[i] = 0;
    mpi.check(
        mpi.call.Isend(&told_[i], sizeof told_[i], mpi.is.byte_type, peer, tag_, comm_, &sends_[i]),
        "telling a peer that a communicator ends");
  }
}

bool Closing::sent() {
  const mpi::Mpi& mpi = mpi::get();
  bool all = true;
  for (mpi::Handle& send : sends_) {
    int done = 0;  // Test reports a completed request, which is null, as done
    mpi.check(mpi.call.Test(&send, &done, mpi.is.status_ignore), "MPI_Test");
    all &= done != 0;
  }
  return all;
}

// Receives one message if it has arrived; returns whether one has. A notice and a peer's number
// differ in length.
bool Closing::receive() {
  if (!arriving_ && !find_message()) return false;
  const mpi::Mpi& mpi = mpi::get();
  alignas(16) std::array<std::byte, 64> status{};  // no MPI family has a larger status
  int done = 0, bytes = 0;
  mpi.check(mpi.call.Test(&arrival_, &done, status.data()), "MPI_Test");
  if (done == 0) return false;
  arriving_ = false;
  mpi.check(mpi.call.Get_count(status.data(), mpi.is.byte_type, &bytes), "MPI_Get_count");
  std::uint64_t told = 0;
  if (bytes != sizeof told) {
    ++received_;  // a notice
    return true;
  }
  std::memcpy(&told, message_.data(), sizeof told);
  expected_ += told;
  --peers_that_tell_;
  return true;
}

// Receives from the sender that the probe has found, as the operation log does.
bool Closing::find_message() {
  const mpi::Mpi& mpi = mpi::get();
  alignas(16) std::array<std::byte, 64> status{};
  int there = 0, sender = 0;
  mpi.check(mpi.call.Iprobe(mpi.is.any_source, mpi.is.any_tag, comm_, &there, status.data()),
            "MPI_Iprobe");
  if (there == 0) return false;
  std::memcpy(&sender, status.data() + mpi.is.status_source, sizeof sender);
  arrival_ = 0;
  mpi.check(mpi.call.Irecv(message_.data(), static_cast<int>(message_.size()), mpi.is.byte_type,
                           sender, mpi.is.any_tag, comm_, &arrival_),
            "receiving what is left on a communicator");
  arriving_ = true;
  return true;
}

}  // namespace gradred
