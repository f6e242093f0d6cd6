// The forms in which float32 numbers travel between hosts where a call asks for a compressed wire.
//
// Blocks of 128 numbers. bf16 and fp16 round each number to nearest, ties to even. int8, int4 and
// fp8_e4m3 divide a block by its scale, its largest magnitude by the format's largest number, and
// round likewise; the scale, a float32, comes first. A block of zeros comes out as zeros (positive
// ones but in bf16 and fp16), and so does one whose scale would be subnormal. A block of a scaled
// format in which an infinity or NaN is comes out as NaN. The bits are the same on every processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "reduce/kernels/reduce_functions.h"

namespace gradred {

enum class Wire : std::uint8_t { kBFloat16, kFloat16, kInt8, kFloat8E4M3, kInt4 };
inline constexpr std::string_view kWires[] = {"bf16", "fp16", "int8", "fp8_e4m3", "int4"};

// Throws UsageError if there is none of that name.
Wire wire_named(std::string_view name);
// The encoded bytes of so many numbers, whole blocks.
std::size_t wire_bytes(Wire wire, std::size_t count);
// The last block is filled up with zeros.
void encode_wire(Wire wire, const float* values, std::size_t count, std::byte* to);
// Writes the numbers to `values`, or adds them.
void decode_wire(Wire wire, const std::byte* from, std::size_t count, float* values, bool adds);
// With the kernels of an instruction set; throws UsageError if there are none.
void encode_wire(Wire wire, const float* values, std::size_t count, std::byte* to,
                 std::string_view isa);
void decode_wire(Wire wire, const std::byte* from, std::size_t count, float* values, bool adds,
                 std::string_view isa);

}  // namespace gradred
