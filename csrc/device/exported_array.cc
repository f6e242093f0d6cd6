#include "device/exported_array.h"

#include <algorithm>

#include "base/errors.h"
#include "device/cuda_memory.h"

namespace gradred::device {
namespace {

// The memory of this thread's context if that is on `device` (-1: any device); else of the device's
// primary context, which must be active.
CudaMemory& memory_of(const Driver& driver, int device, const Options& options) {
  if (const ContextHandle context = driver.current()) {
    Ordinal current = 0;
    driver.check(driver.call.CtxGetDevice(&current), "cuCtxGetDevice");
    if (device < 0 || current == device) {
      return CudaMemory::of(driver, {.device = current, .context = context}, options);
    }
  }
  const int wanted = std::max(device, 0);
  const PrimaryContext primary(driver, wanted);
  return CudaMemory::of(driver, {.device = wanted, .context = primary.get()}, options);
}

}  // namespace

ExportedArray::ExportedArray(std::size_t bytes, int device, const Options& options) {
  const Driver& driver = Driver::load(options.driver);  // throws an error that says what is missing
  if (!driver.initialised()) {
    throw DeviceError(
        "an array on a GPU: nobody in this process has initialised the CUDA driver. Do so first, "
        "for example by cupy.cuda.runtime.free(0) or torch.cuda.init()");
  }
  CudaMemory& memory = memory_of(driver, device, options);
  range_.emplace(memory.exported(), bytes, Export::kIfPossible);
  device_ = memory.ordinal();
}

}  // namespace gradred::device
