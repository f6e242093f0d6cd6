#include "named/kept_vectors.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/errors.h"

namespace gradred {
namespace {

constexpr std::size_t kLeast = std::size_t{64} << 10;
constexpr std::size_t kMost = std::size_t{16} << 20;  // longer vectors are not cached
constexpr std::size_t kKept = 2;                      // one is packed while another is in flight

}  // namespace

KeptVectors::Vector KeptVectors::take(std::size_t bytes) {
  if (bytes < kLeast) return nullptr;
  const auto found =
      std::ranges::find_if(free_, [&](const Vector& one) { return one->bytes() >= bytes; });
  if (found != free_.end()) {
    Vector taken = std::move(*found);
    free_.erase(found);
    return taken;
  }
  try {
    return std::make_unique<ArrayMemory>(std::bit_ceil(bytes));
  } catch (const TransportError&) {
    return nullptr;
  }
}

void KeptVectors::give_back(Vector vector) {
  if (vector == nullptr || vector->bytes() > kMost) return;
  if (free_.size() == kKept) free_.erase(free_.begin());
  free_.push_back(std::move(vector));
}

}  // namespace gradred
