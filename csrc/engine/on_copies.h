// An operation that another one carries out on copies of its arrays.
#pragma once

#include <memory>
#include <string>

#include "engine/started.h"

namespace gradred {

class OperationOnCopies : public StartedOperation {
 public:
  std::string waiter() const override { return inner_->waiter(); }
  std::string waits_for() const override { return inner_->waits_for(); }
  WaitRecord wait_record() const override { return inner_->wait_record(); }
  bool is_first_to_wait() const override { return inner_->is_first_to_wait(); }
  bool must_end() const override { return inner_->must_end(); }
  bool needs_no_mpi() const override { return inner_->needs_no_mpi(); }
  std::size_t bytes() const override { return inner_->bytes(); }
  bool spins() const override { return inner_->spins(); }
  UsedTransport used_transport() const override { return inner_->used_transport(); }

 protected:
  OperationOnCopies() = default;
  // Returns whether the inner operation has ended; throws its error.
  bool advance_inner() {
    if (const Progress progress = inner_->advance(caller()); !progress) {
      stop_at(progress);
      return false;
    }
    inner_->rethrow();
    return true;
  }

  std::shared_ptr<StartedOperation> inner_;  // set in the constructor
};

}  // namespace gradred
