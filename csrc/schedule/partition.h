// Where the chunks of a vector lie. This is the only code that divides a vector.
#pragma once

#include <cstddef>

namespace gradred {

// `count` elements in `chunks` chunks, in order. Their lengths differ by at most one; the longer
// chunks come first.
struct Partition {
  std::size_t count = 0;
  std::size_t chunks = 1;

  std::size_t begin(std::size_t chunk) const {
    const std::size_t base = count / chunks, longer = count % chunks;
    return chunk * base + (chunk < longer ? chunk : longer);
  }
  std::size_t length(std::size_t first, std::size_t run = 1) const {
    return begin(first + run) - begin(first);
  }
  std::size_t longest() const { return chunks == 0 ? 0 : (count + chunks - 1) / chunks; }
};

}  // namespace gradred
