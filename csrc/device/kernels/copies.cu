// Copies many arrays in one launch. Starting a copy of each array by the driver would take longer
// than moving most gradients of a model. Compiled like reduce.cu.

#include "arguments.h"

#ifdef __CUDACC__
#define GRADRED_UNROLL_COPIES _Pragma("unroll")
#else
#define GRADRED_UNROLL_COPIES
#endif

namespace gradred_kernels {

struct alignas(16) Quad {
  unsigned word[4];
};
struct alignas(8) Pair {
  unsigned word[2];
};

// Copies a tile of `count` units with the threads of a block. All loads of one iteration are in
// flight together, since each may come from host memory.
template <class Unit>
__device__ inline void copy_units(void* target, const void* source, u64 count) {
  constexpr unsigned kAtOnce = 4;
  auto* const to = static_cast<Unit*>(target);
  const auto* const from = static_cast<const Unit*>(source);
  for (u64 begin = threadIdx.x; begin < count; begin += kAtOnce * blockDim.x) {
    Unit units[kAtOnce];
    GRADRED_UNROLL_COPIES
    for (unsigned i = 0; i < kAtOnce; ++i) {
      const u64 at = begin + i * blockDim.x;
      if (at < count) units[i] = from[at];
    }
    GRADRED_UNROLL_COPIES
    for (unsigned i = 0; i < kAtOnce; ++i) {
      const u64 at = begin + i * blockDim.x;
      if (at < count) to[at] = units[i];
    }
  }
}

__device__ inline void copy_tile(char* target, const char* source, u64 bytes) {
  const u64 unit = reinterpret_cast<u64>(target) | reinterpret_cast<u64>(source) | bytes;
  if (unit % 16 == 0) return copy_units<Quad>(target, source, bytes / 16);
  if (unit % 8 == 0) return copy_units<Pair>(target, source, bytes / 8);
  if (unit % 4 == 0) return copy_units<unsigned>(target, source, bytes / 4);
  if (unit % 2 == 0) return copy_units<unsigned short>(target, source, bytes / 2);
  copy_units<char>(target, source, bytes);
}

__device__ inline void copies(const CopyArguments& call) {
  for (u64 tile = blockIdx.x; tile < call.tiles[call.parts - 1]; tile += gridDim.x) {
    // Binary search for the first part that ends behind the tile.
    unsigned part = 0, end = call.parts - 1;
    while (part < end) {
      const unsigned middle = (part + end) / 2;
      if (call.tiles[middle] <= tile) {
        part = middle + 1;
      } else {
        end = middle;
      }
    }
    const u64 begin = (tile - (part > 0 ? call.tiles[part - 1] : 0)) * kTileBytes;
    const u64 left = call.bytes[part] - begin;
    copy_tile(static_cast<char*>(call.targets[part]) + begin,
              static_cast<const char*>(call.sources[part]) + begin,
              left < kTileBytes ? left : kTileBytes);
  }
}

}  // namespace gradred_kernels

extern "C" __global__ void __launch_bounds__(256)
    gradred_copies(const __grid_constant__ gradred_kernels::CopyArguments call) {
  gradred_kernels::copies(call);
}
