// The arguments of the kernels, for the kernels and for the code that launches them.
#pragma once

// The element types that GPUs reduce, by their names in csrc/base/types.h.
#define GRADRED_FOR_ELEMENTS(use)                                                          \
  use(float8_e4m3fn) use(float8_e5m2) use(float16) use(bfloat16) use(float32) use(float64) \
      use(int32) use(int64) use(uint8)

namespace gradred_kernels {

using u64 = unsigned long long;

constexpr unsigned kMostInputs = 32;  // of one launch; also the limit for targets

// For reduce.cu.
struct Arguments {
  // Each gets the result; an element of all inputs is read before it is written.
  void* targets[kMostInputs];
  const void* inputs[kMostInputs];
  u64 count;         // elements; all addresses are multiples of the element size
  double factor;     // for kernels that scale
  unsigned written;  // number of targets, at least 1
  unsigned k;  // for kernels with any number of inputs: that number, at least 2, or 1 if they scale
  unsigned divide;  // 1: divide by the factor instead of multiplying
};

// For shots.cu. Each rank has slots and flags in its own device's memory, which all ranks reach.
constexpr unsigned kMostShotBlocks = 32;  // of a launch; all blocks run at the same time

struct ShotArguments {
  const void* input;  // this rank's input; like `result`, aligned to the element size
  void* result;
  void* inputs[kMostInputs];    // each rank's slot, in whole blocks of 16 bytes
  void* sums[kMostInputs];      // each rank's second slot, used by two shots
  unsigned* met[kMostInputs];   // each rank's flags: kMostShotBlocks of them for each rank
  unsigned* left[kMostInputs];  // the same for leaving
  const unsigned* cancelled;    // in host memory; nonzero: stop waiting
  u64 count;                    // elements
  double factor;                // inputs are multiplied by it if `scaled`
  unsigned rank, ranks, turn;   // turns of the group are 1, 2, ...; each is one launch
  unsigned scaled, averaged;
};

// For copies.cu.
constexpr unsigned kMostCopies = 144;  // of one launch, whose arguments are limited to 4 KiB
constexpr u64 kTileBytes = 16 << 10;   // bytes that a block copies at a time

struct CopyArguments {
  void* targets[kMostCopies];
  const void* sources[kMostCopies];
  unsigned bytes[kMostCopies];  // at least 1
  unsigned tiles[kMostCopies];  // tiles of this part and all before it
  unsigned parts;               // at least 1
};
static_assert(sizeof(CopyArguments) <= 4096, "what a launch may be given");

}  // namespace gradred_kernels
