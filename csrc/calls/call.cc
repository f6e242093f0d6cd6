#include "calls/call.h"

#include <bit>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/user_ops.h"
#include "reduce/reduce.h"

namespace gradred {

Collective collective_of(Kind kind) {
  switch (kind) {
    case Kind::kReduceScatterBlock:
      return Collective::kReduceScatter;
    case Kind::kAllgather:
      return Collective::kAllgather;
    case Kind::kBcast:
      return Collective::kBcast;
    default:
      return Collective::kAllreduce;
  }
}

void validate(const Call& call, int size) {
  const bool reduces = call.kind == Kind::kAllreduce || call.kind == Kind::kReduceScatterBlock;
  if (reduces && find_reduction(call.op, call.dtype) == nullptr) {
    throw UsageError(std::string(name_of(call.dtype)) + " has no operation '" +
                     std::string(name_of(call.op)) + "'");
  }
  if (call.kind == Kind::kBcast && (call.root < 0 || call.root >= size)) {
    throw UsageError("root " + std::to_string(call.root) +
                     " is not a rank of this communicator of " + std::to_string(size));
  }
  if (call.count > 0 && (call.in.data == nullptr || call.out.data == nullptr)) {
    throw UsageError(std::to_string(call.count) + " elements at address 0: there is no memory");
  }
}

Signature Call::signature() const {
  if (agreement) return *agreement;
  std::uint64_t detail = layout;
  if (kind == Kind::kBcast) detail += static_cast<std::uint64_t>(root);
  if (op == Op::kPremul) detail = mix(detail, std::bit_cast<std::uint64_t>(factor));
  if (is_users(op)) detail = mix(detail, user_op_hash(op));
  if (plan != nullptr) detail = mix(detail, std::string_view(plan));
  if (schedule != nullptr) detail = mix(mix(detail, schedule->name), schedule->chunks);
  if (path != 0) detail = mix(detail, path);
  return make_signature(kind, op, dtype, count, detail);
}

}  // namespace gradred
