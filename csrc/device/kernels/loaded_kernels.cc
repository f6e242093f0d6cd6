#include "device/kernels/loaded_kernels.h"

namespace gradred::device {

bool LoadedKernels::prepare(Op op, DType dtype) {
  if (kernels_.has(op, dtype)) return true;
  kernels_.compile(op, dtype);
  return gate_.while_none_is_open([&] {
    const ScopedContext scope = context_.scope();  // gradred's own threads have no context
    kernels_.prepare(op, dtype);
  });
}

bool LoadedKernels::prepare_copies() {
  if (kernels_.has_copies()) return true;
  if (!kernels_.compile_copies()) return false;
  bool loaded = false;
  gate_.while_none_is_open([&] {
    const ScopedContext scope = context_.scope();
    loaded = kernels_.load_copies();
  });
  return loaded;
}

}  // namespace gradred::device
