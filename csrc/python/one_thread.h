// Check that only one thread at a time makes calls on a communicator.
#pragma once

#include "base/errors.h"
#include "comm/communicator.h"

namespace gradred {

// Exists during a call on a communicator. A second call meanwhile, from another thread, throws
// UsageError before it changes anything here or for the peers. Two collective calls at a time would
// have no order that all ranks share, and MPI forbids them. Waiting for operations that were
// started is not such a call.
//
// The GIL protects the flag. It is held when this object is made. It is also held when the object
// is destroyed, as the object outlives the hook that releases the GIL.
class OneThread {
 public:
  explicit OneThread(Communicator& communicator) : inside_(communicator.inside_call()) {
    if (inside_) [[unlikely]] {
      refuse();
    }
    inside_ = true;
  }
  // `also`: a second flag, of an object that belongs to the communicator.
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
        "a call on a communicator: another call on it has not returned, in another thread, and the "
        "ranks could not tell which comes first. Give each thread a communicator of its own "
        "(comm.Dup()), or let them take turns.");
  }

  bool& inside_;
  bool* also_ = nullptr;
};

}  // namespace gradred
