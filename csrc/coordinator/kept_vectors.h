// Vectors for packed arrays, kept for the next batch, in memory that peers read where it lies.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "node/array_memory.h"

namespace gradred {

// One thread at a time.
class KeptVectors {
 public:
  using Vector = std::unique_ptr<ArrayMemory>;

  // At least so many bytes, whatever is in them. Null: ordinary memory does for so few, or there is
  // none of this kind left.
  Vector take(std::size_t bytes);
  void give_back(Vector vector);

 private:
  std::vector<Vector> free_;
};

}  // namespace gradred
