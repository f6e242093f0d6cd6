// Arrays that C++ code has read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/types.h"
#include "python/array_layout.h"

namespace gradred {

class DeviceMemory;

// The driver's number of the default stream that waits for all others.
inline constexpr std::uint64_t kLegacyStream = 1;

struct ArrayView {
  void* data;
  std::size_t count;
  DType dtype;
  bool writable;
};

// An array in host or device memory.
struct PlainArray : ArrayView {
  DeviceMemory* memory = nullptr;         // nullptr: host memory
  std::optional<std::uint64_t> stream{};  // stream in which the program uses a device array
  bool is_new = false;  // its library has just made it, in memory that it may have used before
};

// A plain array with its elements in C order.
struct ShapedArray : PlainArray {
  static constexpr std::size_t kMostAxes = 8;

  std::array<std::int64_t, kMostAxes> lengths{};
  std::size_t axes = 0;

  std::span<const std::int64_t> shape() const { return {lengths.data(), axes}; }
  std::uint64_t layout() const { return layout_of(shape(), nullptr, 1)->hash; }
};

}  // namespace gradred
