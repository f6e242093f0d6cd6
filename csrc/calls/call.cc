#include "calls/call.h"

#include <bit>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/user_ops.h"
#include "reduce/averages.h"
#include "reduce/reduce.h"

namespace gradred {

namespace {

void require_carried(const Call& call) {
  const bool sums = call.op == Op::kSum || call.op == Op::kAvg || call.op == Op::kPremul;
  if (call.kind == Kind::kAllreduce && call.dtype == DType::kFloat32 && sums) return;
  throw UsageError(
      "a compressed wire carries sums, means and scaled sums of float32 to all ranks, not " +
      std::string(name_of(call.kind)) + " of " + std::string(name_of(call.dtype)) + " with " +
      std::string(name_of(call.op)));
}

}  // namespace

void validate(const Call& call, int rank, int size) {
  if (reduces(call.kind) && find_reduction(call.op, call.dtype) == nullptr) {
    throw UsageError(std::string(name_of(call.dtype)) + " has no operation '" +
                     std::string(name_of(call.op)) + "'");
  }
  if (has_root(call.kind) && (call.root < 0 || call.root >= size)) {
    throw UsageError("root " + std::to_string(call.root) +
                     " is not a rank of this communicator of " + std::to_string(size));
  }
  if (call.schedule && has_root(call.kind) && call.schedule->root != call.root) {
    const std::string root = std::to_string(call.root);
    throw UsageError("the schedule '" + call.schedule->name + "' is for root " +
                     std::to_string(call.schedule->root) + ", and the call for root " + root +
                     ". Make a schedule with root=" + root);
  }
  if (call.wire != Wire::kNone) require_carried(call);
  const PlaceInCall at{rank, size, call.root};
  const bool no_input = call.in.data == nullptr && given_counts(call.kind, at) > 0;
  const bool no_result = call.out.data == nullptr && got_counts(call.kind, at) > 0;
  if (call.count > 0 && (no_input || no_result)) {
    throw UsageError(std::to_string(call.count) + " elements at address 0: there is no memory");
  }
}

Signature Call::signature() const {
  if (agreement) return *agreement;
  std::uint64_t detail = layout;
  if (has_root(kind)) detail += static_cast<std::uint64_t>(root);
  if (op == Op::kPremul) detail = mix(detail, std::bit_cast<std::uint64_t>(factor));
  if (is_users(op)) detail = mix(detail, user_op_hash(op));
  if (plan != nullptr) detail = mix(detail, std::string_view(plan));
  if (schedule != nullptr) {
    detail = mix(mix(detail, schedule->name), schedule->chunks);
    for (const int leaves : schedule->leaves) detail = mix(detail, static_cast<unsigned>(leaves));
  }
  if (wire != Wire::kNone) detail = mix(detail, name_of(wire));
  if (path != 0) detail = mix(detail, path);
  if (mean_of) {
    return make_signature(kind, Op::kAvg, *mean_of, count / words_of(*mean_of).each, detail);
  }
  return make_signature(kind, op, dtype, count, detail);
}

}  // namespace gradred
