// NCCL, looked up when the program runs: the library that CuPy and PyTorch bring and use. No header
// of it is needed, and nothing of it at build time.
#pragma once

#include <memory>

#include "device/options.h"
#include "memory/collectives.h"

namespace gradred::device {

class CudaMemory;

// For a context. Of where it may be, what the process has loaded comes first. Throws DeviceError:
// it is not there, or too old.
std::unique_ptr<CollectiveLibrary> make_nccl(CudaMemory& memory, const Options& options);

}  // namespace gradred::device
