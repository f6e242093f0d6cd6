// Operations of the calls that block: kept by their communicator after the call, and used again by
// the next such call, which then makes nothing anew.
#pragma once

#include <list>
#include <memory>

#include "comm/call.h"

namespace gradred {

class CommOperation;

// By the thread that makes a call, of which a communicator has one at a time.
class KeptOperations {
 public:
  // One that has carried out such a call, and is free; null: there is none. `call` is planned().
  std::shared_ptr<CommOperation> find(const Call& call);
  void add(std::shared_ptr<CommOperation> operation);

 private:
  std::list<std::shared_ptr<CommOperation>> all_;  // the last used first
};

}  // namespace gradred
