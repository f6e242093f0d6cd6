// What ranks must agree on in one collective call, small enough to travel with the first message.
#pragma once

#include <cstdint>
#include <string>

#include "base/types.h"

namespace gradred {

enum class Kind : std::uint8_t {
  kAllreduce,
  kReduceScatterBlock,
  kAllgather,
  kBcast,
  kAllreduceMany,
  kAborted,  // this rank's arguments were refused: `detail` is a reason code, nothing else counts
};

struct Signature {
  std::uint64_t what = 0;    // kind, op, dtype and count: see make_signature
  std::uint64_t detail = 0;  // root, factor or a hash of the layout; 0 where there is none

  bool operator==(const Signature&) const = default;
};

// Counts above 2^48 elements do not exist.
constexpr Signature make_signature(Kind kind, Op op, DType dtype, std::uint64_t count,
                                   std::uint64_t detail = 0) {
  return {static_cast<std::uint64_t>(kind) << 60 | static_cast<std::uint64_t>(op) << 54 |
              static_cast<std::uint64_t>(dtype) << 48 | (count & ((1ULL << 48) - 1)),
          detail};
}

// "allreduce of 12 float32 with sum (detail 0)": for error messages.
std::string describe(const Signature& signature);

}  // namespace gradred
