// The forms in which float32 numbers travel between hosts where a call asks for a compressed wire.
//
// Blocks of 128 numbers. bf16 and fp16 round each number to nearest, ties to even. int8, int4 and
// fp8_e4m3 divide a block by its scale, its largest magnitude by the format's largest number, and
// round likewise; the scale, a float32, comes first. A block of zeros comes out as zeros (positive
// ones but in bf16 and fp16), and so does one whose scale would be subnormal. A block of a scaled
// format in which an infinity or NaN is comes out as NaN. The bits are the same on every processor.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/wires.h"

namespace gradred {

// Throws UsageError if there is none of that name. "" and "auto" have values, too.
Wire wire_named(std::string_view name);
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
