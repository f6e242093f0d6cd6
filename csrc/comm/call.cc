#include "comm/call.h"

#include <bit>
#include <string_view>

#include "base/user_ops.h"

namespace gradred {
Signature Call::signature() const {
  if (agreement) return *agreement;
  std::uint64_t detail = layout;
  if (kind == Kind::kBcast) detail += static_cast<std::uint64_t>(root);
  if (op == Op::kPremul) detail = mix(detail, std::bit_cast<std::uint64_t>(factor));
  if (is_users(op)) detail = mix(detail, user_op_hash(op));
  if (plan != nullptr) detail = mix(detail, std::string_view(plan));
  if (path != 0) detail = mix(detail, path);
  return make_signature(kind, op, dtype, count, detail);
}

}  // namespace gradred
