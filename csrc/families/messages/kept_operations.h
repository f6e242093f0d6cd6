// Cached operations of blocking calls: after a call the communicator keeps the operation, and the
// next such call reuses it and makes nothing anew.
#pragma once

#include <list>
#include <memory>

#include "calls/call.h"

namespace gradred {

class CommOperation;

// Used by the thread that makes a call, of which a communicator has one at a time.
class KeptOperations {
 public:
  // A free operation that has carried out such a call; nullptr: there is none. `call` comes from
  // planned().
  std::shared_ptr<CommOperation> find(const Call& call);
  void add(std::shared_ptr<CommOperation> operation);

 private:
  std::list<std::shared_ptr<CommOperation>> all_;  // most recently used first
};

}  // namespace gradred
