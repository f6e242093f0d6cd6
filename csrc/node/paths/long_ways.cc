#include "node/paths/long_ways.h"

#include "base/clock.h"

namespace gradred {

LongWays::LongWays(NodeAgreement& group, PeerStores& stores)
    : NodeWay(group, stores),
      chunks_(group, stores),
      single_copy_(group, stores),
      device_way_(group, stores) {}

// The rank that measures: one whose work ends last. That is the root of a gather, but not of a
// broadcast or a scatter, and the last rank of a scan.
std::size_t LongWays::decider(const NodeCall& call) const {
  if (sums_differ(call.kind)) return size_ - 1;
  if (info_of(call.kind).result == Part::kRoots) return static_cast<std::size_t>(call.root);
  return info_of(call.kind).input == Part::kRoots && call.root == 0 ? 1 : 0;
}

// Whether the deciding rank measures such an operation.
bool LongWays::measures(const NodeCall& call) const {
  return size_ > 1 && !call.led && call.input_bytes(size_) > 0;
}

// Whether the decider set this flag. Requires that all ranks have announced.
bool LongWays::decided(const NodeCall& call, std::uint16_t what) const {
  return (ReadOffer::of(announcement(decider(call))).says & what) != 0;
}

// Announces the operation with a ReadOffer beside the signature.
void LongWays::announce(const NodeCall& call) {
  ReadOffer offer{};
  if (single_copy_.serves(call)) single_copy_.offer(call, offer);
  if (measures(call) && rank_ == decider(call)) choose(call, offer);
  if (call.device != nullptr) DeviceWay::offer(*call.device, offer);
  group_.announce(call.signature, &offer, sizeof offer);
}

void LongWays::choose(const NodeCall& call, ReadOffer& offer) {
  if (faster_way_ == nullptr) faster_way_ = std::make_unique<FasterWay>();
  chosen_for_ = {.kind = call.kind,
                 .bytes = call.input_bytes(size_),
                 .reads = single_copy_.serves(call),
                 .in_place = call.send == kInPlace,
                 .mapped = offer.input_place() && offer.output_place(),
                 .in_groups = chunks_.serves_in_groups(call)};
  const Way way = faster_way_->choose(chosen_for_);
  if (way == Way::kReading || way == Way::kReadingPast) offer.says |= ReadOffer::kWanted;
  if (way == Way::kChunksInGroups) offer.says |= ReadOffer::kInGroups;
  if (way == Way::kChunksPast || way == Way::kReadingPast) offer.says |= ReadOffer::kPast;
}

bool LongWays::reads(const NodeCall& call) {
  return single_copy_.serves(call) && single_copy_.all_can_read() && part_.is_whole() &&
         decided(call, ReadOffer::kWanted);
}

std::uint64_t LongWays::begin_measuring(const NodeCall& call) const {
  // With a flow, the time would include waiting for the input.
  const bool is_there = call.flow == nullptr;
  return measures(call) && is_there && rank_ == decider(call) ? now_ns() : 0;
}

void LongWays::end_measuring(std::uint64_t begin) {
  faster_way_->took(chosen_for_, taken_, now_ns() - begin);
}

// If reading was chosen but some ranks cannot read, stores are chosen as for slots.
Steps LongWays::steps(const NodeCall& call) {
  group_.part().use_more_if_said(group_.operation());
  const bool measured = measures(call);
  const bool past = measured && decided(call, ReadOffer::kPast);
  if (measured && reads(call)) {
    taken_ = past ? Way::kReadingPast : Way::kReading;
    group_.uses(UsedTransport::kPeersMemory);
    return single_copy_.steps(call, past);
  }
  if (measured && decided(call, ReadOffer::kInGroups) && part_.is_whole()) {
    taken_ = Way::kChunksInGroups;
    stores_.begin(false);
    group_.uses(UsedTransport::kChunks);
    return chunks_.reduce_in_groups(call);
  }
  if (measured && !decided(call, ReadOffer::kWanted)) {
    stores_.begin(past);
  } else {
    stores_.begin_on(call.input_bytes(size_));
  }
  taken_ = stores_.past() ? Way::kChunksPast : Way::kChunks;
  group_.uses(UsedTransport::kChunks);
  return chunks_.steps(call);
}

}  // namespace gradred
