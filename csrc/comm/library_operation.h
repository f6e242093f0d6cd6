// Calls that a library carries out on arrays in devices' memory (memory/collectives.h): the ranks
// agree on each one first, and connect by the first.
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

#include "comm/call.h"
#include "memory/collectives.h"
#include "plan/plan.h"

namespace gradred {

// Of one communicator: its ranks as the library knows them. Each call takes a turn when it is made,
// and the library gets the calls in this order.
class LibraryRanks {
 public:
  LibraryRanks(std::string_view plan, LibraryKind kind) : plan_(plan), kind_(kind) {}

  // Why the calls of this rank's device cannot go this way, as far as it can tell; empty: they can.
  std::string why_not(const Call& call);

  std::uint64_t take_turn() { return turns_++; }
  bool is_turn(std::uint64_t turn);
  void pass(std::uint64_t turn);

  // What each rank tells the others at the first call.
  struct Told {
    CollectiveLibrary::Ticket ticket{};
    DeviceMemory::Identity device{};
    std::uint64_t shares_devices = 0;
    char why_not[200] = {};  // it cannot take part; no text: it can
  };
  bool first() { return !begun_.exchange(true); }
  std::string text() const;             // how far it is, in words
  void try_again() { begun_ = false; }  // they did not agree on that call
  Told told(const Call& call, int rank, int ranks) noexcept;
  // By what all have told, the same on all ranks. Throws UsageError: they cannot.
  void connect(const std::vector<Told>& all);

  // One thread at a time has the group: what work() returns, or false while another thread has it.
  // Throws UsageError where the ranks have not connected.
  template <class Work>
  bool use(Work&& work) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    require_group();
    return work(*group_);
  }
  // Of the group, by who has it: to all peers. Throws UsageError where ranks on one device do not
  // come together, which is no failure of the device's: all see it, and nothing has been begun.
  bool is_connected(LibraryGroup& group);
  void abort() noexcept;  // waits for a thread that has it

 private:
  void require_group() const;

  const std::string_view plan_;
  const LibraryKind kind_;
  std::mutex mutex_;  // of the group
  std::unique_ptr<LibraryGroup> group_;
  bool joined_ = false;             // the group knows its ranks
  bool on_one_device_ = false;      // two of them, or more
  DeviceMemory* memory_ = nullptr;  // that the group works on
  std::string why_not_;             // once all know
  std::atomic<bool> begun_{false};
  std::mutex turns_mutex_;
  std::uint64_t turns_ = 0, next_ = 0;
  std::set<std::uint64_t> passed_;  // out of order
};

// Of one communicator: the libraries that its calls have named.
class Libraries {
 public:
  LibraryRanks& ranks(std::string_view plan, LibraryKind kind);
  void abort() noexcept;     // what any of them has under way on this rank's device
  std::string text() const;  // how far each is, in words

 private:
  mutable std::mutex mutex_;
  std::map<std::string_view, LibraryRanks> ranks_;  // by plan
};

std::shared_ptr<StartedOperation> library_operation(Communicator& comm, const Call& call,
                                                    const Plan& plan, LibraryKind kind);

}  // namespace gradred
