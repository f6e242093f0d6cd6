// Calls that a library carries out on arrays in device memory (memory/collectives.h). The ranks
// first agree on each call, and connect at the first one.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "calls/call.h"
#include "calls/parts.h"
#include "engine/started.h"
#include "memory/collectives.h"
#include "plan/plan.h"

namespace gradred {

// The ranks of one communicator as the library knows them. Each call takes a turn when it is made,
// and the library gets the calls in the order of the turns.
class LibraryRanks {
 public:
  explicit LibraryRanks(std::string_view plan) : plan_(plan) {}

  // Why the library cannot carry out calls on this rank's device, as far as this rank knows; empty:
  // it can.
  std::string why_not(const Call& call);

  std::uint64_t take_turn() { return turns_++; }
  bool is_turn(std::uint64_t turn);
  void pass(std::uint64_t turn);

  // What each rank sends the others at the first call.
  struct PeerInfo {
    CollectiveLibrary::Ticket ticket{};
    DeviceMemory::Identity device{};
    std::uint64_t shares_devices = 0;
    char why_not[200] = {};  // why the rank cannot take part; empty: it can
  };
  bool first() { return !begun_.exchange(true); }
  std::string text() const;             // in words, whether the ranks are connected
  void try_again() { begun_ = false; }  // the ranks did not agree on that call
  PeerInfo peer_info(const Call& call, int rank, int ranks) noexcept;
  // Connects the ranks. `all`: what the ranks have sent, the same on all. Throws UsageError if they
  // cannot connect.
  void connect(const std::vector<PeerInfo>& all);

  // One thread at a time uses the group. Returns what work() returns, or false while another thread
  // uses the group. Throws UsageError if the ranks have not connected.
  template <class Work>
  bool use(Work&& work) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    require_group();
    return work(*group_);
  }
  // For the thread that uses the group: whether it is connected to all peers. Throws UsageError if
  // ranks on one device cannot connect. That is no failure of the device: all ranks see it, and no
  // call has begun.
  bool is_connected(LibraryGroup& group);
  void abort() noexcept;  // waits for a thread that uses the group

 private:
  void require_group() const;

  const std::string_view plan_;
  std::mutex mutex_;  // guards the group
  std::unique_ptr<LibraryGroup> group_;
  bool joined_ = false;             // the group knows its ranks
  bool on_one_device_ = false;      // two or more ranks are on one device
  DeviceMemory* memory_ = nullptr;  // the device memory that the group works on
  std::string why_not_;             // set once all ranks know it
  std::atomic<bool> begun_{false};
  std::mutex turns_mutex_;
  std::uint64_t turns_ = 0, next_ = 0;
  std::set<std::uint64_t> passed_;  // turns passed out of order
};

// The libraries that the calls of one communicator have named.
class Libraries {
 public:
  LibraryRanks& ranks(std::string_view plan);
  void abort() noexcept;     // aborts what runs on this rank's device
  std::string text() const;  // in words, how far each library is

 private:
  mutable std::mutex mutex_;
  std::map<std::string_view, LibraryRanks> ranks_;  // by plan
};

std::shared_ptr<StartedOperation> library_operation(const Parts& parts, const Call& call,
                                                    const Plan& plan);

}  // namespace gradred
