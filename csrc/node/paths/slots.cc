#include "node/paths/slots.h"

#include "base/clock.h"
#include "base/copy_bytes.h"
#include "node/memory/copy.h"

namespace gradred {

void Slots::announce(const NodeCall& call, DataPath path) {
  const std::size_t bytes = call.given_bytes(rank_, size_);
  if (path == DataPath::kInLine) return group_.announce(call.signature, call.input(rank_), bytes);
  if (chooses_stores(call)) return announce_measured(call, path);
  stores_.begin_on(bytes);
  stores_.give(own_slot(path), call.input(rank_), bytes);
  group_.announce(call.signature, nullptr, 0);
}

void Slots::announce_measured(const NodeCall& call, DataPath path) {
  const std::size_t bytes = call.given_bytes(rank_, size_);
  const bool decides = rank_ == 0;
  const std::uint64_t begin = decides && stores_.faster().measures(bytes) ? now_ns() : 0;
  stores_.begin_on(bytes);
  stores_.give(own_slot(path), call.input(rank_), bytes);
  store_ns_ = begin != 0 ? now_ns() - begin : 0;
  const std::uint8_t next = decides ? stores_.faster().decide(bytes) : std::uint8_t{0};
  group_.announce(call.signature, &next, sizeof next);
}

void Slots::reduce_measured(const NodeCall& call) {
  const std::uint64_t begin = store_ns_ != 0 ? now_ns() : 0;
  combine(call, call.recv, call.count);
  if (begin != 0)
    stores_.faster().took(call.given_bytes(rank_, size_), store_ns_ + now_ns() - begin);
  stores_.faster().follow(std::to_integer<std::uint8_t>(announcement(0).data[0]));
}

void Slots::take(const NodeCall& call, DataPath path) {
  if (call.bytes() == 0) return;
  if (call.kind == Kind::kAllreduce) [[likely]] {
    for (std::size_t rank = 0; rank < size_; ++rank) operands_[rank] = given(rank, path);
    operands_[rank_] = call.input(rank_);
    if (chooses_stores(call)) return reduce_measured(call);
    return combine(call, call.recv, call.count);
  }
  if (call.parts != nullptr) return take_parts(call, path);
  if (call.kind == Kind::kAlltoall) return take_splits(call, path);
  take_blocks(call, path);
}

void Slots::take_parts(const NodeCall& call, DataPath path) {
  auto* const output = static_cast<std::byte*>(call.recv);
  if (call.kind == Kind::kAllgather) {
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance), bytes = call.part_bytes(peer);
      if (bytes > 0) copy_bytes(output + call.part_begin(peer), given(peer, path), bytes);
    }
    return;
  }
  const std::size_t begin = call.part_begin(rank_), bytes = call.part_bytes(rank_);
  for (std::size_t rank = 0; rank < size_; ++rank) operands_[rank] = given(rank, path) + begin;
  operands_[rank_] = call.input(rank_) + begin;
  if (bytes > 0) combine(call, output + begin, bytes / call.element);
}

void Slots::take_blocks(const NodeCall& call, DataPath path) {
  const std::size_t block = call.bytes();
  auto* const output = static_cast<std::byte*>(call.recv);
  const auto copy = [&](std::byte* target, const std::byte* source) {
    if (target == source) return;  // in place
    if (path == DataPath::kInLine) return copy_few(target, source, block);
    copy_bytes(target, source, block);
  };
  switch (call.kind) {
    case Kind::kBcast:
      if (call.root == static_cast<int>(rank_)) return;
      return copy(output, given(static_cast<std::size_t>(call.root), path));
    case Kind::kAllgather:
      for (std::size_t distance = 1; distance < size_; ++distance) {
        const std::size_t peer = peer_at(distance);
        copy(output + peer * block, given(peer, path));
      }
      return copy(output + rank_ * block, call.input(rank_));
    case Kind::kReduceScatterBlock:
      for (std::size_t rank = 0; rank < size_; ++rank) {
        operands_[rank] = given(rank, path) + rank_ * block;
      }
      return combine(call, output, call.count);
    default:
      return own_ways_.of(call.kind).take(call, path);
  }
}

void Slots::take_splits(const NodeCall& call, DataPath path) {
  auto* const output = static_cast<std::byte*>(call.recv);
  for (std::size_t rank = 0; rank < size_; ++rank) {
    const std::byte* const theirs = rank == rank_ ? call.input(rank_) : given(rank, path);
    const std::size_t bytes = call.split_bytes(rank, rank_, size_);
    if (bytes == 0) continue;
    copy_bytes(output + call.got_before(rank_, rank, size_),
               theirs + call.given_before(rank, rank_, size_), bytes);
  }
}

}  // namespace gradred
