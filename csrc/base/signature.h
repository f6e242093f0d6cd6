// What ranks must agree on in one collective call, small enough to travel with the first message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/types.h"

namespace gradred {

enum class Kind : std::uint8_t {
  kAllreduce,
  kReduceScatterBlock,
  kAllgather,
  kBcast,
  kAlltoall,   // within a host, of named operations alone
  kAborted,    // this rank's arguments were refused: `detail` is a reason code, nothing else counts
  kLeftToMpi,  // a call that the MPI carries out itself: the count is its kind
};

struct Signature {
  std::uint64_t what = 0;    // kind, op, dtype and count: see make_signature
  std::uint64_t detail = 0;  // root, factor or a hash of the layout; 0 where there is none

  bool operator==(const Signature&) const = default;
};

// A hash of the parts of a call that are compared but not shown; of names and files as well.
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}
constexpr std::uint64_t mix(std::uint64_t hash, std::string_view text) {
  hash = mix(hash, text.size());
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    word = word << 8 | static_cast<unsigned char>(text[i]);
    if (i % 8 == 7 || i + 1 == text.size()) hash = mix(hash, std::exchange(word, 0));
  }
  return hash;
}

// Counts above 2^48 elements do not exist.
constexpr Signature make_signature(Kind kind, Op op, DType dtype, std::uint64_t count,
                                   std::uint64_t detail = 0) {
  return {static_cast<std::uint64_t>(kind) << 60 |
              static_cast<std::uint64_t>(as_compared(op)) << 54 |
              static_cast<std::uint64_t>(dtype) << 48 | (count & ((1ULL << 48) - 1)),
          detail};
}

std::string_view name_of(Kind kind);
bool reduces(Kind kind);  // whether its operation means anything
// Of the count elements; 0 for a type that is unknown.
std::uint64_t bytes_of(const Signature& signature);

// "allreduce of 12 float32 with sum": for error messages.
std::string describe(const Signature& signature);
// "allreduce of 12 float32 with sum, 48 bytes", for who looks from outside:
// src/gradred/observe/status.py.
std::string describe_with_bytes(const Signature& signature);

// Two ranks that asked for different things, as an error message. Where all that is known of the
// difference is a hash, it names what such calls can still differ in.
std::string disagreement_text(int rank, const Signature& asked, int other,
                              const Signature& other_asked);
bool is_disagreement(std::string_view text);  // whether it was made so

}  // namespace gradred
