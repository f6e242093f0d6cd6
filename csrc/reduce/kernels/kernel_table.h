// The tables of functions that each instruction set provides. kernels.cc fills them once per
// set of compiler flags.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/types.h"
#include "reduce/kernels/reduce_functions.h"

namespace gradred {

struct Kernels {
  using Scale = void (*)(void* data, std::size_t count, double factor, bool divide);
  struct Row {
    ReduceFunctions of[kDTypes];  // {nullptr, nullptr} where the type lacks the operation
  };

  Row reduce[kOps];
  Scale scale[kDTypes];  // real and complex types; nullptr for integers and bool
  ExactFunctions exact;
  WireFunctions wires[kWires.size()];  // in the order of kWires
};

// The tables of an instruction set, by name; empty: of the best one. Returns nullptr if this
// processor or build lacks it.
const Kernels* find_kernels(std::string_view isa = {});

namespace generic {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace neon {
extern const Kernels kKernels;
}

}  // namespace gradred
