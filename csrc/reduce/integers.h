// Arithmetic on integers that no type of C++'s own holds, and one function for each type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/errors.h"
#include "base/types.h"

namespace gradred {

__extension__ using Int128 = __int128;

// Calls `use` with a value of the C++ type of an integer type.
template <class Use>
void with_integer(DType dtype, Use use) {
  switch (dtype) {
    case DType::kInt8:
      return use(std::int8_t{});
    case DType::kInt16:
      return use(std::int16_t{});
    case DType::kInt32:
      return use(std::int32_t{});
    case DType::kInt64:
      return use(std::int64_t{});
    case DType::kUInt8:
      return use(std::uint8_t{});
    case DType::kUInt16:
      return use(std::uint16_t{});
    case DType::kUInt32:
      return use(std::uint32_t{});
    case DType::kUInt64:
      return use(std::uint64_t{});
    default:
      check(false, "an integer type");
  }
}

// Access to arrays that may not be aligned.
template <class T>
T load_at(const void* array, std::size_t i) {
  T value;
  __builtin_memcpy(&value, static_cast<const char*>(array) + i * sizeof value, sizeof value);
  return value;
}
template <class T>
void store_at(void* array, std::size_t i, T value) {
  __builtin_memcpy(static_cast<char*>(array) + i * sizeof value, &value, sizeof value);
}

}  // namespace gradred
