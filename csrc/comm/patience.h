// How to wait for messages of the MPI underneath: there is no word in memory to sleep on.
#pragma once

#include <sched.h>
#include <time.h>

namespace gradred {

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

}  // namespace gradred
