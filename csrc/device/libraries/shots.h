// Allreduces by one kernel on each rank's GPU, which waits for the kernels of its peers. The ranks
// reach each other's memory by CUDA IPC. In one shot, each rank reads all inputs. In two shots,
// each rank reduces a slice and reads the others' slices. (The terms are those of NCCL and MSCCL++;
// TensorRT-LLM and vLLM do small allreduces in this way.) See docs/design/shots.md.
#pragma once

#include <memory>

#include "device/ipc/cuda_parts.h"
#include "memory/collectives.h"

namespace gradred::device {

// `kind`: kOneShot, or else two shots.
std::unique_ptr<CollectiveLibrary> make_shots(const CudaParts& parts, LibraryKind kind);

}  // namespace gradred::device
