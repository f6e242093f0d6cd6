// What ranks must agree on in one collective call. It is small enough to travel with the first
// message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/kinds.h"
#include "base/types.h"

namespace gradred {

struct Signature {
  std::uint64_t what = 0;    // kind, op, dtype and count: see make_signature
  std::uint64_t detail = 0;  // root, factor or a hash of the layout; 0: none

  bool operator==(const Signature&) const = default;
};

// A hash for the parts of a call that are compared but not displayed. Also used for names and
// files.
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

static_assert(kKinds.size() <= 16, "the kind has four bits of Signature::what");
// Counts must be below 2^48.
constexpr Signature make_signature(Kind kind, Op op, DType dtype, std::uint64_t count,
                                   std::uint64_t detail = 0) {
  return {static_cast<std::uint64_t>(kind) << 60 |
              static_cast<std::uint64_t>(as_compared(op)) << 54 |
              static_cast<std::uint64_t>(dtype) << 48 | (count & ((1ULL << 48) - 1)),
          detail};
}

// The fields of Signature::what. A signature may come from a peer of another version, so a field is
// checked before it is used as an index.
struct SignatureFields {
  std::uint64_t kind, op, dtype, count;

  explicit constexpr SignatureFields(const Signature& of)
      : kind(of.what >> 60),
        op(of.what >> 54 & 63),
        dtype(of.what >> 48 & 63),
        count(of.what & ((1ULL << 48) - 1)) {}
  constexpr bool is(Kind one) const { return kind == static_cast<std::uint64_t>(one); }
};

// Bytes of the counted elements; 0 if the type is unknown.
std::uint64_t bytes_of(const Signature& signature);

// Text for error messages: "allreduce of 12 float32 with sum".
std::string describe(const Signature& signature);
// Text for observers (src/gradred/observe/status.py): "allreduce of 12 float32 with sum, 48 bytes".
std::string describe_with_bytes(const Signature& signature);

// An error message for two ranks that called different operations. If only a hash differs, the text
// lists what such calls can still differ in. `rank` and `other` are names such as "rank 1".
std::string disagreement_text(std::string_view rank, const Signature& asked, std::string_view other,
                              const Signature& other_asked);
bool is_disagreement(std::string_view text);  // whether disagreement_text() made the text

}  // namespace gradred
