// The kernels of one context, loaded when the driver may wait for it.
#pragma once

#include "device/driver/cuda_context.h"
#include "device/driver/driver_gate.h"
#include "device/driver/options.h"
#include "device/kernels/kernels.h"

namespace gradred::device {

class LoadedKernels {
 public:
  LoadedKernels(const CudaContext& context, DriverGate& gate, const Options& options)
      : context_(context), gate_(gate), kernels_(context.driver(), context.ordinal(), options) {}

  Kernels& kernels() { return kernels_; }
  // Compiles and loads kernels; see Kernels. Returns false if that is impossible now.
  bool prepare(Op op, DType dtype);
  bool prepare_copies();  // the same for the kernel that copies; false also if there is none

 private:
  const CudaContext& context_;
  DriverGate& gate_;
  Kernels kernels_;
};

}  // namespace gradred::device
