// A reduction of one operation and element type, for pairs and for many inputs, and the steps of
// exact sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/wires.h"

namespace gradred {

struct ReduceFunctions {
  // target[i] = a[i] op b[i]. `target` may be `a` or `b`; otherwise the arrays must not overlap. No
  // alignment is needed.
  void (*pair)(void* target, const void* a, const void* b, std::size_t count);
  // target[i] = inputs[0][i] op ... op inputs[k - 1][i], folded from the left, k >= 1. `target` may
  // be one of the inputs. k == 1 copies the bits.
  void (*many)(void* target, const void* const* inputs, std::size_t k, std::size_t count);
  bool are_programs = false;  // made from a function of the program, which may need its thread
};

// Steps of exact sums, on blocks of this many float64s; kernels/exact.h says what they do.
constexpr std::size_t kExactBlock = 1024;
constexpr std::int64_t kMagnitude = 0x7FFF'FFFF'FFFF'FFFF;  // the bits of a float64 but its sign
struct ExactFunctions {
  double (*largest)(const double* values);
  bool (*extract)(double* rest, const double* values, double sigma, double* sum);
};

// A form of float32 numbers between hosts, on whole blocks (reduce/wire.h).
struct WireFunctions {
  void (*encode)(const float* values, std::size_t blocks, std::byte* to);
  void (*decode)(const std::byte* from, std::size_t blocks, float* values);
  void (*add)(const std::byte* from, std::size_t blocks, float* values);
};

}  // namespace gradred
