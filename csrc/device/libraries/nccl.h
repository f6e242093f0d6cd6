// NCCL, loaded at run time: the library that CuPy and PyTorch install and use. Nothing of it is
// needed at build time.
#pragma once

#include <memory>

#include "device/driver/cuda_context.h"
#include "device/driver/options.h"
#include "memory/collectives.h"

namespace gradred::device {

// Makes the library's object for a context. A library that the process has loaded already comes
// before the others in Options. Throws DeviceError if NCCL is missing or too old.
std::unique_ptr<CollectiveLibrary> make_nccl(const CudaContext& context, const Options& options);

}  // namespace gradred::device
