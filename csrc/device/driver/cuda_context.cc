#include "device/driver/cuda_context.h"

#include <random>
#include <string>

#include "base/errors.h"

namespace gradred::device {
namespace {

std::uint64_t new_id() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

std::string name_of(const Driver& driver, Ordinal device) {
  const std::string name = "CUDA device " + std::to_string(device);
  char model[256] = "";
  const bool is_named = driver.call.DeviceGetName(model, sizeof model, device) == kSuccess;
  return is_named ? name + " (" + model + ")" : name;
}

}  // namespace

CudaContext::CudaContext(const Driver& driver, ContextHandle context, Ordinal device)
    : driver_(driver),
      context_(context),
      device_(device),
      id_(new_id()),
      name_(name_of(driver, device)) {
  driver.check(driver.call.DeviceGetUuid(&uuid_, device), "cuDeviceGetUuid");
}

bool CudaContext::is_captured(std::uint64_t stream) const {
  if (driver_.call.StreamIsCapturing == nullptr) return false;
  int capturing = 0;
  const Result code =
      driver_.call.StreamIsCapturing(reinterpret_cast<StreamHandle>(stream), &capturing);
  if (code == kCapturedElsewhere) return true;
  driver_.check(code, "cuStreamIsCapturing");
  return capturing != 0;
}

void CudaContext::require_live(std::uint64_t stream) const {
  if (!is_captured(stream)) return;
  throw UsageError("a call on arrays of " + name_ +
                   ": a stream that it has to come after is being captured in a CUDA graph, and "
                   "calls cannot be part of one. Make it before or after the capture");
}

}  // namespace gradred::device
