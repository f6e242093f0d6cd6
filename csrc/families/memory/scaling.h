// What a call does to its input and result beside combining them: the factor (premul), the division
// by the number of ranks (avg), and truth values of a single input. In host memory.
#pragma once

#include <cstddef>
#include <vector>

#include "calls/call.h"

namespace gradred {

// Multiplies `count` elements of input by the call's factor (premul).
void scale_input(const Call& call, void* data, std::size_t count);
// Whether settle_result() has something to do.
inline bool is_unsettled(const Call& call) {
  return call.op == Op::kAvg || gives_truth(call.op, call.dtype);
}
// Divides an average by the number of inputs that were reduced into it. If a result that must be 0
// or 1 is a copy of one input, makes it so.
void divide_or_make_truth(const Call& call, void* data, int rank, int size);
// Inline, since every short call comes here.
inline void settle_result(const Call& call, void* data, int rank, int size) {
  if (is_unsettled(call)) [[unlikely]]
    divide_or_make_truth(call, data, rank, size);
}

// The input times the factor, which is put into `storage`.
const void* scaled_input(const Call& call, int size, std::vector<std::byte>& storage);

}  // namespace gradred
