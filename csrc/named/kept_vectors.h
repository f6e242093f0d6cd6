// A cache of vectors for packed arrays. They lie in shared memory, so peers read them in place.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "node/memory/array_memory.h"

namespace gradred {

// For one thread at a time.
class KeptVectors {
 public:
  using Vector = std::unique_ptr<ArrayMemory>;

  // Returns uninitialised memory of at least `bytes`. Returns nullptr if `bytes` is so small that
  // ordinary memory serves as well, or if no shared memory is available.
  Vector take(std::size_t bytes);
  void give_back(Vector vector);

 private:
  std::vector<Vector> free_;
};

}  // namespace gradred
