// Small parts of Communicator: how it waits, how a node group finds its ranks.
#pragma once

#include <sched.h>
#include <time.h>

#include <vector>

#include "comm/communicator.h"

namespace gradred {

inline constexpr std::size_t kLongWorkBytes = std::size_t{32} << 10;

// How to wait for messages of the MPI underneath: there is no word in memory to sleep on.
class Patience {
 public:
  template <class Meanwhile>
  void wait(Meanwhile meanwhile) {
    ++looks_;
    if (looks_ < 100) return;
    if (looks_ % 16 == 0) meanwhile();
    if (looks_ < 1000) {
      sched_yield();
    } else if (looks_ % 8 == 0) {  // more ranks than cores, perhaps: sched_yield() may do nothing
      const timespec nap{0, looks_ < 20000 ? 20'000 : 100'000};
      nanosleep(&nap, nullptr);
    }
  }

 private:
  unsigned looks_ = 0;
};

// What a rank does while it waits for shared memory: MPI's progress rule holds.
class NodePoll final : public Poll {
 public:
  NodePoll(Communicator& comm, WaitHook& hook) : comm_(comm), hook_(hook) {}
  void poll() override;

 private:
  Communicator& comm_;
  WaitHook& hook_;
};

// The inputs times the factor, in `storage`.
const void* scaled_input(const Call& call, int size, std::vector<std::byte>& storage);

}  // namespace gradred
