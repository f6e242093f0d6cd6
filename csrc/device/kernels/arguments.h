// What the kernels are given, for who launches them, too.
#pragma once

// The element types that GPUs reduce, by their names in csrc/base/types.h.
#define GRADRED_FOR_ELEMENTS(use)                                                          \
  use(float8_e4m3fn) use(float8_e5m2) use(float16) use(bfloat16) use(float32) use(float64) \
      use(int32) use(int64) use(uint8)

namespace gradred_kernels {

using u64 = unsigned long long;

constexpr unsigned kMostInputs = 32;  // of one launch; as many targets

// Of reduce.cu.
struct Arguments {
  void* targets[kMostInputs];  // each gets the result; an element of all inputs is read before that
  const void* inputs[kMostInputs];
  u64 count;         // elements; all addresses are multiples of an element
  double factor;     // of kernels that scale
  unsigned written;  // targets, at least 1
  unsigned k;        // inputs, of kernels for any number: at least 2, or 1 where they scale
  unsigned divide;   // instead of multiplying by the factor
};

// Of shots.cu. Each rank has slots and flags in its own device's memory, which all reach.
constexpr unsigned kMostShotBlocks = 32;  // of a launch: all run at the same time

struct ShotArguments {
  const void* input;  // of this rank, a multiple of an element's bytes as `result` is
  void* result;
  void* inputs[kMostInputs];    // each rank's slot, of whole blocks of 16 bytes
  void* sums[kMostInputs];      // and a second one where there are two shots
  unsigned* met[kMostInputs];   // each rank's flags: for each rank, kMostShotBlocks of them
  unsigned* left[kMostInputs];  // likewise
  const unsigned* cancelled;    // in the host's memory; not 0: nobody waits any longer
  u64 count;                    // elements
  double factor;                // that inputs are multiplied by where `scaled`
  unsigned rank, ranks, turn;   // turns of the group's are 1, 2, ...: each is one launch
  unsigned scaled, averaged;
};

// Of copies.cu.
constexpr unsigned kMostCopies = 144;  // of one launch, whose arguments are 4 KiB at most
constexpr u64 kTileBytes = 16 << 10;   // that a block copies at a time

struct CopyArguments {
  void* targets[kMostCopies];
  const void* sources[kMostCopies];
  unsigned bytes[kMostCopies];  // at least 1
  unsigned tiles[kMostCopies];  // of each and all before it
  unsigned parts;               // at least 1
};
static_assert(sizeof(CopyArguments) <= 4096, "what a launch may be given");

}  // namespace gradred_kernels
