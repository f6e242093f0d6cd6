// Host copies of a named operation's arrays that lie in a device's memory, for operations that are
// carried out in host memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "memory/memory.h"
#include "named/named_operation.h"

namespace gradred {

class ArraysOnHost {
 public:
  explicit ArraysOnHost(NamedOperation& operation);
  // Replaces the operation's arrays with host copies, and starts to copy the inputs.
  void take_over();

  // Whether all inputs have been copied. Never blocks.
  bool inputs_are_there();
  // Whether all results have been copied to the caller's memory. The first call starts the copies.
  // Never blocks.
  bool results_are_there();
  // Whether no copy is in progress any more, so that the caller's memory and this object's may be
  // freed. Waits a moment for copies that are.
  bool settle() noexcept;

 private:
  struct Moved {
    std::size_t index;
    NamedArray given;
    std::shared_ptr<Stream> stream;  // behind the work that must precede the array's use
    HostAllocation input, result;
  };

  NamedOperation& operation_;
  std::vector<Moved> moved_;
  bool copies_results_ = false;
};

}  // namespace gradred
