// The layout of a dense array in memory: the lengths of its axes, and their order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace gradred {

struct ArrayLayout {
  static constexpr std::size_t kMostAxes = 64;  // NumPy's and PyTorch's limit

  std::size_t count = 1;  // of the elements
  std::size_t axes = 0;
  // The axes from the slowest to the fastest. Axes of length 1 stay in their place.
  std::array<std::int8_t, kMostAxes> order{};
  std::uint64_t hash = 0;  // of shape and order; the ranks compare it
  bool by_rows = true;     // C order
  bool straight = true;    // C or Fortran order, as MPI's buffers have

  bool operator==(const ArrayLayout&) const = default;
};

// Strides and `step`, the distance of neighbours, have one unit: bytes or elements. `strides`
// nullptr: C order. Returns nullopt if there are gaps between elements, or if elements share
// memory. Throws UsageError for more than kMostAxes axes.
std::optional<ArrayLayout> layout_of(std::span<const std::int64_t> shape,
                                     const std::int64_t* strides, std::int64_t step);

}  // namespace gradred
