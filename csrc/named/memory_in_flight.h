// The memory that named operations in flight use in this process, whichever communicator they are
// of. Operations that use the same memory are carried out one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/free_blocks.h"
#include "named/named_operation.h"

namespace gradred {

// Any thread may use it. It takes no other lock.
class MemoryInFlight {
 public:
  // Which operations in flight use memory of an operation that is added, where one of the two
  // writes there.
  struct Shared {
    bool with_own = false;     // operations of the same communicator
    bool with_others = false;  // operations of other communicators
    // Two arrays of the operation itself; both 0: there are none.
    std::pair<std::uint32_t, std::uint32_t> itself{};
  };
  Shared add(NamedOperation& operation);
  // No effect if the operation has not been added, or has been removed.
  void remove(NamedOperation& operation);
  // Returns an operation of another communicator that uses memory of `operation`, and was added
  // before it: its name in quotes. Empty: there is none.
  std::string before(const NamedOperation& operation);

 private:
  struct Use {
    MemoryUse memory;
    const NamedOperation* by;  // nullptr: no operation uses it any more
  };
  // By the address at which it begins.
  using Table = std::map<std::uintptr_t, Use, std::less<>,
                         PoolAllocator<std::pair<const std::uintptr_t, Use>>>;

  void add(MemoryUse& memory, const NamedOperation& by, Shared& found);
  Table::iterator first_in(const MemoryUse& memory);
  void drop_unused();

  std::mutex mutex_;
  std::uint64_t added_ = 0;
  // Uses that do not overlap: nearly all, since programs seldom use memory twice at a time. A use
  // stays here after its end, since programs reduce the same memory again and again.
  Table apart_;
  std::size_t most_apart_ = 1024;  // then those that have ended are dropped
  std::vector<Use> overlapping_;   // uses in flight that overlap another one
};

MemoryInFlight& memory_in_flight();  // the only one of the process

}  // namespace gradred
