// The forms in which a call may let float32 travel between hosts (reduce/wire.h encodes them).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradred {

// kAuto: of a call alone; the plan has one of the others.
enum class Wire : std::uint8_t { kNone, kBFloat16, kFloat16, kInt8, kFloat8E4M3, kInt4, kAuto };

inline constexpr std::size_t kWireBlock = 128;  // numbers, of which some forms share a scale
struct WireInfo {
  std::string_view name;
  std::size_t block_bytes;
};
// In the order of the enumeration, from kBFloat16 on.
inline constexpr std::array<WireInfo, 5> kWires = {{{"bf16", 2 * kWireBlock},
                                                    {"fp16", 2 * kWireBlock},
                                                    {"int8", sizeof(float) + kWireBlock},
                                                    {"fp8_e4m3", sizeof(float) + kWireBlock},
                                                    {"int4", sizeof(float) + kWireBlock / 2}}};

constexpr const WireInfo& info_of(Wire form) { return kWires[static_cast<std::size_t>(form) - 1]; }
constexpr std::string_view name_of(Wire wire) {
  return wire == Wire::kNone ? "" : wire == Wire::kAuto ? "auto" : info_of(wire).name;
}
// The encoded bytes of so many numbers, whole blocks.
constexpr std::size_t wire_bytes(Wire form, std::size_t count) {
  return (count + kWireBlock - 1) / kWireBlock * info_of(form).block_bytes;
}
// The encoded bytes of each byte.
constexpr double wire_share(Wire form) {
  return static_cast<double>(info_of(form).block_bytes) / (kWireBlock * sizeof(float));
}

}  // namespace gradred
