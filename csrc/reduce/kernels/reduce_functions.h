// A reduction of one operation and element type, for pairs and for many inputs.
#pragma once

#include <cstddef>

namespace gradred {

struct ReduceFunctions {
  // target[i] = a[i] op b[i]. `target` may be `a` or `b`; otherwise the arrays must not overlap. No
  // alignment is needed.
  void (*pair)(void* target, const void* a, const void* b, std::size_t count);
  // target[i] = inputs[0][i] op ... op inputs[k - 1][i], folded from the left, k >= 1. `target` may
  // be one of the inputs. k == 1 copies the bits.
  void (*many)(void* target, const void* const* inputs, std::size_t k, std::size_t count);
};

}  // namespace gradred
