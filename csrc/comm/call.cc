#include "comm/call.h"

#include <bit>
#include <string_view>

namespace gradred {
namespace {

// FNV-1a, for the parts of a call that are compared but not shown.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) {
    hash = (hash ^ ((value >> (8 * byte)) & 0xff)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

Signature Call::signature() const {
  std::uint64_t detail = layout;
  if (kind == Kind::kBcast) detail += static_cast<std::uint64_t>(root);
  if (op == Op::kPremul) detail = mix(detail, std::bit_cast<std::uint64_t>(factor));
  if (plan != nullptr) {
    for (const char letter : std::string_view(plan)) {
      detail = mix(detail, static_cast<std::uint64_t>(letter));
    }
  }
  return make_signature(kind, op, dtype, count, detail);
}

}  // namespace gradred
