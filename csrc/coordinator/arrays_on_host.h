// Arrays of a named operation that lie in a device's memory, while its work goes through the
// host's.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "coordinator/named.h"
#include "memory/memory.h"

namespace gradred {

class ArraysOnHost {
 public:
  explicit ArraysOnHost(NamedOperation& operation);
  // From now on the operation's arrays are these, and their inputs are being copied.
  void take_over();

  bool inputs_are_there();  // as the next one, never blocks
  // Whether the caller's memory has all results that were put in these arrays. Begins to copy them
  // when it is called first.
  bool results_are_there();
  // Whether nothing reads or writes the caller's memory any more, nor this. Waits a moment for it.
  bool settle() noexcept;

 private:
  struct Moved {
    std::size_t index;
    NamedArray given;
    std::shared_ptr<Stream> stream;  // after what comes before the array
    HostAllocation input, result;
  };

  NamedOperation& operation_;
  std::vector<Moved> moved_;
  bool copies_results_ = false;
};

}  // namespace gradred
