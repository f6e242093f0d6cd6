// How a communicator that gradred made for itself is freed.
//
// A notice may come too late for its operation, and then no rank receives it (operation_log.h). MPI
// gives the identifier of a freed communicator to a later one, and with it the messages that are
// still unread. The later communicator, perhaps the program's own, would find a notice that was
// never meant for it, from a sender that it may not even have. So at the end the ranks add up how
// many notices each of them was sent, and each frees its handle when it has received as many.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "mpi/mpi.h"

namespace gradred {

inline constexpr std::size_t kLargestNotice = 1024;

// Counts the notices of this rank on one communicator. Several threads may count.
class NoticeCount {
 public:
  void count_sent(int peer) {
    const std::lock_guard lock(mutex_);
    ++sent_[peer];
  }
  void count_received() {
    const std::lock_guard lock(mutex_);
    ++received_;
  }
  std::vector<std::uint64_t> sent(int size) const;  // by peer
  std::uint64_t received() const {
    const std::lock_guard lock(mutex_);
    return received_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, std::uint64_t> sent_;
  std::uint64_t received_ = 0;
};

// A communicator that this rank no longer uses, while other ranks may still use it. The object must
// not move until advance() has returned true, because the MPI reads and writes its members.
class Closing {
 public:
  Closing(mpi::Handle comm, std::shared_ptr<NoticeCount> notices)
      : comm_(comm), notices_(std::move(notices)) {}
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;

  // Returns true once the communicator is freed. Never blocks, never throws. A communicator for
  // which the MPI reports an error is not freed.
  bool advance() noexcept;

 private:
  bool try_to_advance();
  void start();
  bool receive();

  mpi::Handle comm_;
  std::shared_ptr<NoticeCount> notices_;
  bool started_ = false, failed_ = false;
  std::vector<std::uint64_t> sent_;  // by peer, for the sum over all ranks
  std::uint64_t expected_ = 0;       // that sum
  mpi::Handle sum_ = 0;
  bool arriving_ = false;  // a notice that is being received
  mpi::Handle arrival_ = 0;
  std::array<std::byte, kLargestNotice> notice_{};
};

}  // namespace gradred
