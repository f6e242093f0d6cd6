// Driver functions that gradred does not call but array libraries do, above all for Numba's arrays.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simulated_driver.h"

namespace simulated {
namespace {
std::atomic<long> copied_rows{0};
}
long copies_of_rows() { return copied_rows; }
}  // namespace simulated

using namespace simulated;  // NOLINT: all of this is C

// Layout of CUDA_MEMCPY2D.
struct Side {
  std::size_t x, y;
  int type;
  const void* host;
  Address address;
  void* array;
  std::size_t pitch;
};
struct Rows {
  Side source, target;
  std::size_t width, height;
};

extern "C" {

int cuMemcpyAsync(Address target, Address source, std::size_t bytes, void* stream);
int cuStreamSynchronize(void* stream);

// Copies rows without gaps, in any memory.
int cuMemcpy2DAsync_v2(const Rows* rows, void* stream) {
  if (const int code = failing_in_context("cuMemcpy2DAsync")) return code;
  const auto is_plain = [rows](const Side& side) {
    constexpr int kUnified = 4;
    return side.type == kUnified && side.pitch == rows->width && side.x + side.y == 0;
  };
  if (rows->width * rows->height == 0) return kInvalidValue;
  if (!is_plain(rows->source) || !is_plain(rows->target)) return kInvalidValue;
  ++copied_rows;
  const std::size_t bytes = rows->width * rows->height;
  return cuMemcpyAsync(rows->target.address, rows->source.address, bytes, stream);
}

int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  if (const int code = failing_in_context("cuMemGetInfo")) return code;
  return *free = *total = std::size_t{1} << 33, kSuccess;
}
// Like the driver's function, it blocks until the copy is complete.
int cuMemcpyHtoD_v2(Address target, const void* source, std::size_t bytes) {
  const int code = cuMemcpyAsync(target, reinterpret_cast<Address>(source), bytes, nullptr);
  return code != kSuccess ? code : cuStreamSynchronize(nullptr);
}
int cuMemcpyDtoH_v2(void* target, Address source, std::size_t bytes) {
  const int code = cuMemcpyAsync(reinterpret_cast<Address>(target), source, bytes, nullptr);
  return code != kSuccess ? code : cuStreamSynchronize(nullptr);
}
int cuMemcpyDtoD_v2(Address target, Address source, std::size_t bytes) {
  return cuMemcpyAsync(target, source, bytes, nullptr);
}
int cuMemcpyHtoDAsync_v2(Address target, const void* source, std::size_t bytes, void* stream) {
  return cuMemcpyAsync(target, reinterpret_cast<Address>(source), bytes, stream);
}
int cuMemcpyDtoHAsync_v2(void* target, Address source, std::size_t bytes, void* stream) {
  return cuMemcpyAsync(reinterpret_cast<Address>(target), source, bytes, stream);
}
// The host and all devices use the same address for pinned memory.
int cuMemHostGetDevicePointer_v2(Address* address, void* pinned, unsigned) {
  if (const int code = failing_in_context("cuMemHostGetDevicePointer")) return code;
  return *address = reinterpret_cast<Address>(pinned), kSuccess;
}
int cuCtxGetDevice(int* device) {
  if (const int code = failing_in_context("cuCtxGetDevice")) return code;
  return *device = current_device(), kSuccess;
}

}  // extern "C"
