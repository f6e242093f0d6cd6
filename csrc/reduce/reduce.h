// Elementwise reductions: one function per operation, element type and instruction set.
//
// All are symmetric bit for bit: f(a, b) and f(b, a) give the same bits. This includes NaN (a NaN
// result is the canonical quiet NaN, in each part of a complex number), signed zeros (min and max
// order -0 < +0) and infinities. min and max propagate NaN. All instruction sets give the same
// bits, whatever floating-point mode the calling thread has (kernels/float_mode.h). Integers wrap.
// Logical operations give 0 or 1; each byte of bool but 0 is true. Floats of 16 and 8 bits are
// computed in float32: pair() rounds once per call, and so does many().
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "reduce/kernels/reduce_functions.h"

namespace gradred {

// Returns the fastest functions for this processor, or nullptr if the type lacks the operation.
// Logical and bitwise operations need integers or bool; min and max need an order (false < true);
// bool has no arithmetic.
const ReduceFunctions* find_reduction(Op op, DType dtype);

// target = the inputs folded from the left, rounded to the type after each step, as ranks compute
// that pass sums on. `element`: bytes of one element. There is at least one input; `target` may be
// the last one.
void fold(const ReduceFunctions& functions, std::size_t element, void* target,
          std::span<const void* const> inputs, std::size_t count);

// Adds the functions of an operation that the program has made from its own function
// (base/user_ops.h). find_reduction() returns them from then on, until the process ends. For each
// type only the first functions count.
void add_reduction(Op op, DType dtype, const ReduceFunctions& functions);

// The same for one instruction set, by name ("generic", "avx2", "avx512", "neon"); for tests.
// Returns nullptr if this processor or build lacks it.
const ReduceFunctions* find_reduction(Op op, DType dtype, std::string_view isa);
std::string_view best_isa();
std::vector<std::string_view> isas();  // those available here, the best first

// data[i] *= factor. Floats of up to 32 bits are computed in float32, float64 and complex in their
// own precision (a complex number part by part). Integers times a whole number are exact, and times
// any other number computed in float64 and truncated toward zero; both are limited to the type's
// range, and NaN becomes 0. `divide` divides floats by `factor` instead, with one rounding. bool
// cannot be scaled, and integers are divided by averages.h alone: those are internal errors.
void scale(void* data, std::size_t count, DType dtype, double factor, bool divide);

}  // namespace gradred
