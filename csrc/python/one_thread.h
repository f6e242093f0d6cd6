// One thread at a time makes calls on a communicator.
#pragma once

#include "base/errors.h"
#include "comm/communicator.h"

namespace gradred {

// Lives as long as a call on the communicator does. A second call that comes meanwhile, from
// another thread or a signal handler, gets a UsageError before it has changed anything, here or for
// the peers: two collective calls at a time have no order that ranks could share, and MPI forbids
// them. Waiting for operations that were started is no such call.
//
// The GIL is the lock of the mark: it is held where this begins and, since it outlives the hook
// that lets go of the GIL, where it ends.
class OneThread {
 public:
  explicit OneThread(Communicator& communicator) : inside_(communicator.inside_call()) {
    if (inside_) [[unlikely]] {
      refuse();
    }
    inside_ = true;
  }
  // `also` says the same of something that belongs to the communicator.
  OneThread(Communicator& communicator, bool* also) : OneThread(communicator) {
    also_ = also;
    *also_ = true;
  }
  ~OneThread() {
    inside_ = false;
    if (also_ != nullptr) *also_ = false;
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  [[noreturn]] static void refuse() {
    throw UsageError(
        "a call on a communicator: another call on it has not returned, in another thread or "
        "below a signal handler, and the ranks could not tell which comes first. Give each thread "
        "a communicator of its own (comm.Dup()), or let them take turns.");
  }

  bool& inside_;
  bool* also_ = nullptr;
};

}  // namespace gradred
