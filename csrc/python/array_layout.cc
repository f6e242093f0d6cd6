#include "python/array_layout.h"

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "base/mixed.h"

namespace gradred {

std::optional<ArrayLayout> layout_of(std::span<const std::int64_t> shape,
                                     const std::int64_t* strides, std::int64_t step) {
  if (shape.size() > ArrayLayout::kMostAxes) {
    throw UsageError("an array of " + std::to_string(shape.size()) + " axes; gradred takes up to " +
                     std::to_string(ArrayLayout::kMostAxes));
  }
  ArrayLayout found{.axes = shape.size()};
  std::array<std::int8_t, ArrayLayout::kMostAxes> long_axes{};  // in order of the shape
  auto* end = long_axes.begin();
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    found.count *= static_cast<std::size_t>(shape[axis]);
    found.order[axis] = static_cast<std::int8_t>(axis);
    if (shape[axis] < 0) return std::nullopt;
    if (shape[axis] > 1) *end++ = static_cast<std::int8_t>(axis);
  }
  const auto length = [&](std::int8_t axis) { return shape[static_cast<std::size_t>(axis)]; };
  if (strides != nullptr && found.count > 1) {
    const auto stride = [&](std::int8_t axis) { return strides[axis]; };
    auto by_stride = long_axes;
    auto* const last = by_stride.begin() + (end - long_axes.begin());
    std::ranges::sort(by_stride.begin(), last, std::ranges::greater{}, stride);
    for (auto* axis = last; axis != by_stride.begin(); step *= length(*axis)) {
      if (stride(*--axis) != step) return std::nullopt;
    }
    found.by_rows = by_stride == long_axes;
    std::reverse(long_axes.begin(), end);
    found.straight = found.by_rows || by_stride == long_axes;
    const auto* next = by_stride.begin();
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] > 1) found.order[axis] = *next++;
    }
  }
  found.hash = mixed(1, shape.size());
  for (const std::int64_t one : shape) {
    found.hash = mixed(found.hash, static_cast<std::uint64_t>(one));
  }
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    found.hash = mixed(found.hash, static_cast<std::uint64_t>(found.order[axis]));
  }
  return found;
}

}  // namespace gradred
