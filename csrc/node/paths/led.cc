#include "node/paths/led.h"

#include "base/copy_bytes.h"
#include "node/memory/copy.h"

namespace gradred {

void Led::take_charge(const NodeCall& call, DataPath path) {
  group_.compare_with_followers(call.signature);
  const std::size_t bytes = call.bytes();
  if (bytes == 0) return;
  auto* const target = static_cast<std::byte*>(call.recv);
  if (call.kind == Kind::kBcast) {
    if (call.root > 0) copy_bytes(target, given(static_cast<std::size_t>(call.root), path), bytes);
  } else if (call.kind == Kind::kAllgather) {
    for (std::size_t rank = 1; rank < size_; ++rank) {
      copy_bytes(target + call.part_begin(rank), given(rank, path), bytes);
    }
  } else {
    for (std::size_t rank = 1; rank < size_; ++rank) operands_[rank] = given(rank, path);
    operands_[0] = call.input(rank_);
    combine(call, target, call.count);
  }
}

void Led::pass_on(const NodeCall& call, DataPath path) {
  const std::size_t bytes = call.passed_on_bytes();
  const auto* const result = static_cast<const std::byte*>(call.recv);
  if (path == DataPath::kInLine) return group_.announce(call.signature, result, bytes);
  stores_.begin_on(bytes);
  stores_.give(own_slot(path), result, bytes);
  group_.announce(call.signature, nullptr, 0);
}

void Led::take_passed_on(const NodeCall& call, DataPath path) {
  group_.compare_with_leader(call.signature);
  if (call.kind == Kind::kBcast && call.root == static_cast<int>(rank_)) return;
  const std::size_t bytes = call.passed_on_bytes();
  if (path == DataPath::kInLine) {
    copy_few(static_cast<std::byte*>(call.recv), given(0, path), bytes);
  } else {
    copy_bytes(call.recv, given(0, path), bytes);
  }
}

}  // namespace gradred
