// The factor of a call (premul) and the division by the number of ranks (avg), in host memory.
#pragma once

#include <cstddef>
#include <vector>

#include "calls/call.h"

namespace gradred {

// Multiplies `count` elements of input by the call's factor (premul).
void scale_input(const Call& call, void* data, std::size_t count);
// Divides the result of a rank by the number of inputs that are reduced into it.
void divide_result(const Call& call, void* data, int rank, int size);
// The same for averages only. Inline, since every short call comes here.
inline void scale_result(const Call& call, void* data, int rank, int size) {
  if (call.op == Op::kAvg) divide_result(call, data, rank, size);
}

// The input times the factor, which is put into `storage`.
const void* scaled_input(const Call& call, int size, std::vector<std::byte>& storage);

}  // namespace gradred
