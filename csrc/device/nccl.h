// NCCL, looked up when the program runs: the library that CuPy and PyTorch bring and use. No header
// of it is needed, and nothing of it at build time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memory/collectives.h"

namespace gradred::device {

class CudaMemory;

// For a context. `names`: where it may be; the one that the process has loaded comes first. Throws
// DeviceError: it is not there, or too old.
std::unique_ptr<CollectiveLibrary> make_nccl(CudaMemory& memory,
                                             const std::vector<std::string>& names);

}  // namespace gradred::device
