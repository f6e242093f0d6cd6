// The libraries that carry out whole calls on arrays in the memory of CUDA devices, one file each.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "device/driver/cuda_context.h"
#include "device/driver/options.h"
#include "device/ipc/cuda_parts.h"
#include "memory/collectives.h"

namespace gradred::device {

// NCCL (nccl.cc), loaded at run time: the library that CuPy and PyTorch install and use. Nothing of
// it is needed at build time. A library that the process has loaded already comes before the others
// in Options. Throws DeviceError if NCCL is missing or too old.
std::unique_ptr<CollectiveLibrary> make_nccl(const CudaContext& context, const Options& options);

// Allreduces by one kernel on each rank's GPU (shots.cc), which waits for the kernels of its peers.
// The ranks reach each other's memory by CUDA IPC. In one shot, each rank reads all inputs. In two
// shots, each rank reduces a slice and reads the others' slices. (The terms are those of NCCL and
// MSCCL++; TensorRT-LLM and vLLM do small allreduces in this way.) See docs/design/device.md.
std::unique_ptr<CollectiveLibrary> make_one_shot(const CudaParts& parts);
std::unique_ptr<CollectiveLibrary> make_two_shot(const CudaParts& parts);

// Makes the library of a plan. Throws DeviceError if it is not usable here.
inline std::unique_ptr<CollectiveLibrary> make_library(std::string_view plan,
                                                       const CudaParts& parts,
                                                       const Options& options) {
  if (plan == "nccl") return make_nccl(parts.context, options);
  if (plan == "one_shot") return make_one_shot(parts);
  if (plan == "two_shot") return make_two_shot(parts);
  throw DeviceError("no library has plan " + std::string(plan));
}

}  // namespace gradred::device
