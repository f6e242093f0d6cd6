// A communicator of the program, and what its ranks have agreed on: whether gradred carries out its
// calls, and which.
//
// gradred on one rank and the MPI on another would wait for each other for ever. So the decision
// depends only on what is the same on all ranks: the communicator, the number of its calls so far,
// and the kind, type, operation and bytes of a call. The first calls of a communicator are the
// MPI's, because many communicators have few calls. Then the ranks ask each other, by a call of the
// MPI, whether all of them can take part, and set up what gradred needs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "mpi/mpi.h"
#include "preload/library.h"

namespace gradred::preload {

class ProgramComm {
 public:
  ProgramComm(mpi::Handle handle, int rank, int size, bool is_ours);

  const mpi::Handle handle;
  const int rank, size;

  // Called first by every blocking call of a kind in this library, in the order that all ranks
  // share. Returns whether gradred may carry out the call. Blocking and collective where the ranks
  // agree on that. Throws what the set-up throws.
  bool may_serve_blocking() { return use_ == Use::kOurs || (use_ == Use::kUndecided && decide()); }
  // For calls that return at once. Local.
  bool may_serve_started() const { return use_ == Use::kOurs && comm_->starts(); }
  // Whether gradred carries out calls like this one, `bytes` long: of the vector, or of a rank's
  // block if has_blocks(kind). The ranks agree on the answer.
  bool serves(const Call& call, std::size_t bytes) const {
    return bytes <= most_bytes_[static_cast<std::size_t>(call.kind)] &&
           (!asks_plan_ || plan_serves(call));
  }
  Communicator& comm() { return *comm_; }

 private:
  enum class Use : std::uint8_t { kUndecided, kOurs, kNotOurs };

  bool decide();
  bool all_can() const;
  void set_limits();
  bool plan_serves(const Call& call) const;

  Use use_;
  unsigned calls_ = 0;
  bool asks_plan_ = false;  // the plan of each call shows whether the MPI is faster
  std::array<std::size_t, kCalledKinds> most_bytes_{};
  std::shared_ptr<Communicator> comm_;
};

// The communicator with this handle, whose unused bits have any value; nullptr: it is the MPI's.
ProgramComm* look_up(mpi::Handle handle) noexcept;

// Changes whenever a communicator is freed, as its handle may then become another one's.
inline std::atomic<std::uint64_t> freed_communicators{1};

// The same; each thread remembers the communicators that it used last. `caller` is an address in
// the program's code.
inline ProgramComm* program_comm(mpi::Handle argument, const void* caller) noexcept {
  struct Entry {
    mpi::Handle handle;
    std::uint64_t freed;  // 0: an empty entry
    ProgramComm* comm;
  };
  static constexpr std::size_t kEntries = 16;
  static thread_local constinit std::array<Entry, kEntries> entries{};
  if (process.load(std::memory_order_acquire) != Process::kRank) [[unlikely]] {
    if (process == Process::kNoRank || !begin_in(caller)) return nullptr;
  }
  const mpi::Handle handle = argument & handle_mask.load(std::memory_order_relaxed);
  const std::uint64_t freed = freed_communicators.load(std::memory_order_acquire);
  Entry& entry = entries[(handle ^ handle >> 6 ^ handle >> 12) % kEntries];
  if (entry.handle != handle || entry.freed != freed) [[unlikely]] {
    entry = {handle, freed, look_up(handle)};
  }
  return entry.comm;
}

}  // namespace gradred::preload
