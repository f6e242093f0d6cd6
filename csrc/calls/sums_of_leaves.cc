#include "calls/sums_of_leaves.h"

#include <bit>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/kinds.h"

namespace gradred {
namespace {

constexpr const char* kTree = "recursive_doubling";  // base/leaf_tree.h, for 2^k ranks of one leaf

bool depends_on_order(Op op, DType dtype) {
  const bool is_exact = is_integer(dtype) || dtype == DType::kBool;
  const bool adds = op == Op::kSum || op == Op::kProd || op == Op::kAvg || op == Op::kPremul;
  return is_users(op) || (adds && !is_exact);
}

bool names_another_plan(const Call& call) {
  return call.plan != nullptr && *call.plan != '\0' && std::string_view(call.plan) != kTree;
}

}  // namespace

Call call_by_tree(const Call& call, int size, std::uint64_t leaves) {
  if (!reduces(call.kind) || call.agreement || !depends_on_order(call.op, call.dtype)) return call;
  if (call.schedule != nullptr && !call.schedule->leaves.empty()) return call;
  const bool is_plain = call.kind == Kind::kAllreduce && call.schedule == nullptr &&
                        call.wire == Wire::kNone && !is_users(call.op) && !names_another_plan(call);
  const auto ranks = static_cast<std::uint64_t>(size);
  if (!is_plain || ranks != leaves || !std::has_single_bit(ranks)) {
    throw UsageError(std::string(name_of(call.op)) + " of " + std::string(name_of(call.dtype)) +
                     ": GRADRED_DETERMINISTIC is ranks, and the result would depend on the number "
                     "of ranks. Pass leaves= to an allreduce, or use gradred.exact_sum");
  }
  Call made = call;
  made.plan = kTree;
  return made;
}

}  // namespace gradred
