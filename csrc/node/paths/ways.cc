#include "node/paths/ways.h"

#include <algorithm>

namespace gradred {

NodeWays::NodeWays(NodeAgreement& group)
    : group_(group),
      size_(static_cast<std::size_t>(group.size())),
      in_line_end_(group.options().has_tree(size_) ? 0 : Announcement::kDataBytes + 1),
      slots_(group, stores_),
      led_(group, stores_),
      long_ways_(group, stores_) {}

void NodeWays::divide(std::span<const std::uint32_t> cache_groups) {
  if (group_.options().has_tree(size_)) tree_ = std::make_unique<FlagTree>(group_, cache_groups);
}

// A short call in a group of few ranks passes one comparison of its path.
void NodeWays::run(const NodeCall& call, Poll* poll) {
  group_.operate(poll, [&] {
    const DataPath path = path_of(call);
    if (path == DataPath::kChunks || path == DataPath::kInTree) [[unlikely]] {
      return path == DataPath::kChunks ? run_in_steps(call) : run_in_tree(call);
    }
    announce(call, path);
    group_.await_announcements(call.signature);
    slots_.take(call, path);
  });
}

void NodeWays::run_in_steps(const NodeCall& call) {
  announce(call, DataPath::kChunks);
  group_.await_announcements(call.signature);
  const std::uint64_t begin = long_ways_.begin_measuring(call);
  Steps steps = long_ways_.steps(call);
  while (!steps.advance()) group_.waiter().wait(steps.awaited());
  if (begin != 0) long_ways_.end_measuring(begin);
}

void NodeWays::run_in_tree(const NodeCall& call) {
  announce(call, DataPath::kInLine);
  if (!tree_->await(call.signature, call.input_bytes(size_))) {
    group_.throw_disagreement(call.signature);
  }
  slots_.take(call, DataPath::kInTree);
}

std::size_t NodeWays::slot_bytes(const NodeCall& call) const {
  return call.led ? std::max(call.bytes(), call.passed_on_bytes()) : call.input_bytes(size_);
}

DataPath NodeWays::path_of(const NodeCall& call) const {
  const std::size_t bytes = slot_bytes(call);
  if (call.order != nullptr && bytes > 0) return DataPath::kChunks;
  if (bytes < in_line_end_) return DataPath::kInLine;
  if (bytes <= Announcement::kDataBytes) return DataPath::kInTree;
  const DataPath slots = bytes <= kShortSlot ? DataPath::kShortSlots : DataPath::kSlots;
  if (call.led) return slots;
  // If each rank reads only one part of a peer's data, chunks move fewer bytes, but take more
  // steps. Reductions of arrays in device memory go by chunks there.
  constexpr std::size_t kFew = 8192;
  const bool is_few = bytes <= kFew && !reduces(call.kind);
  const KindInfo& kind = info_of(call.kind);
  const bool in_blocks = kind.input != Part::kOwnBlock && has_blocks(call.kind);
  const bool one_look =
      kind.input != Part::kPieces && (!in_blocks || call.parts != nullptr || is_few);
  // Slots measure how to write for allreduces alone; chunks do for each kind.
  const bool is_measured = bytes <= kFew || call.kind == Kind::kAllreduce;
  const bool fits = one_look && is_measured && group_.part().usable().fits_slots(bytes, size_);
  return fits ? slots : DataPath::kChunks;
}

void NodeWays::place(const NodeCall& call, DataPath path) {
  if (path == DataPath::kSlots) group_.part().place(group_.operation(), slot_bytes(call));
}

void NodeWays::announce(const NodeCall& call, DataPath path) {
  place(call, path);
  group_.uses(path == DataPath::kInLine ? UsedTransport::kInLine : UsedTransport::kSlots);
  if (path != DataPath::kChunks) return slots_.announce(call, path);
  SharedPart& part = group_.part();
  if (!part.is_whole() && group_.rank() == 0) {
    part.grow(group_.operation(), call.input_bytes(size_));
  }
  long_ways_.announce(call);
}

}  // namespace gradred
