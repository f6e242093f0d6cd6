// Allreduces by a kernel on each rank's own GPU that waits for those of its peers, through memory
// of all of them that CUDA IPC lets each reach: in one shot each rank reads all inputs, in two each
// reduces a slice and reads the others'. (NCCL's and MSCCL++'s words; TensorRT-LLM and vLLM do
// small allreduces so.) docs/design/shots.md.
#pragma once

#include <memory>

#include "memory/collectives.h"

namespace gradred::device {

class CudaMemory;

// `kind`: one shot or two.
std::unique_ptr<CollectiveLibrary> make_shots(CudaMemory& memory, LibraryKind kind);

}  // namespace gradred::device
