// The values that every layer speaks of: element types, operations, buffers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradred {

enum class DType : std::uint8_t {
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
};
inline constexpr std::size_t kDTypes = 15;

// kAvg is a sum that is divided by the number of ranks at the end; kPremul a sum whose inputs are
// multiplied by a factor first. Both combine pairwise like kSum.
enum class Op : std::uint8_t {
  kSum,
  kProd,
  kMin,
  kMax,
  kLand,
  kLor,
  kLxor,
  kBand,
  kBor,
  kBxor,
  kAvg,
  kPremul,
};
inline constexpr std::size_t kOps = 12;

enum class MemoryKind : std::uint8_t { kHost, kCuda };

struct DTypeInfo {
  std::string_view name;  // NumPy's name
  std::size_t bytes;      // of one element
};

inline constexpr std::array<DTypeInfo, kDTypes> kDTypeInfo = {{
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"bool", 1},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex64", 8},
    {"complex128", 16},
}};

inline constexpr std::array<std::string_view, kOps> kOpNames = {
    "sum", "prod", "min", "max", "land", "lor", "lxor", "band", "bor", "bxor", "avg", "premul"};

constexpr std::size_t size_of(DType dtype) {
  return kDTypeInfo[static_cast<std::size_t>(dtype)].bytes;
}
constexpr std::string_view name_of(DType dtype) {
  return kDTypeInfo[static_cast<std::size_t>(dtype)].name;
}
constexpr std::string_view name_of(Op op) { return kOpNames[static_cast<std::size_t>(op)]; }

// Borrowed memory of `count` elements. `device` counts only for kCuda.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  MemoryKind kind = MemoryKind::kHost;
  int device = 0;

  std::size_t bytes() const { return count * size_of(dtype); }
};

}  // namespace gradred
