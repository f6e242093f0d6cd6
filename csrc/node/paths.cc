// Collective operations within one host: which path an operation takes, and those on which each
// rank publishes once. In all of them an element is folded in order of rank, so all ranks get the
// same bits, whatever the path.
#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "node/copy.h"
#include "node/group.h"

namespace gradred {

void NodeGroup::run(const NodeCall& call, Poll* poll) {
  operate(poll, [&] {
    const Path path = path_of(call);
    announce_input(call, path);
    await_announcements(call.signature);
    if (path != Path::kChunks) return take_inputs(call, path);
    const std::uint64_t begin = begin_measuring(call);
    Steps steps = chunks(call);
    while (!steps.advance()) waiter_.wait(steps.awaited());
    if (begin != 0) end_measuring(call, begin);
  });
}

std::size_t NodeGroup::longest_part(const NodeCall& call) const {
  if (call.parts == nullptr) return call.count * call.element;
  std::size_t longest = 0;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    longest = std::max(longest, part_bytes(call, rank));
  }
  return longest;
}

// What a rank gives to all peers together; of parts the longest, so that all choose one path.
std::size_t NodeGroup::input_bytes(const NodeCall& call) const {
  const std::size_t bytes = call.count * call.element;
  if (call.kind == Kind::kAllgather) return longest_part(call);
  return call.kind == Kind::kReduceScatterBlock && call.parts == nullptr ? size_ * bytes : bytes;
}

std::size_t NodeGroup::given_before(const NodeCall& call, std::size_t from, std::size_t to) const {
  std::size_t bytes = 0;
  for (std::size_t rank = 0; rank < to; ++rank) bytes += split_bytes(call, from, rank);
  return bytes;
}

std::size_t NodeGroup::got_before(const NodeCall& call, std::size_t to, std::size_t from) const {
  std::size_t bytes = 0;
  for (std::size_t rank = 0; rank < from; ++rank) bytes += split_bytes(call, rank, to);
  return bytes;
}

std::size_t NodeGroup::given_bytes(const NodeCall& call) const {
  if (call.kind == Kind::kAlltoall) return given_before(call, rank_, size_);
  if (call.kind == Kind::kBcast) return call.root == rank() ? call.count * call.element : 0;
  if (call.led) return call.count * call.element;
  return call.kind == Kind::kAllgather ? part_bytes(call, rank_) : input_bytes(call);
}

const std::byte* NodeGroup::input_of(const NodeCall& call) const {
  if (call.send != kInPlace && call.kind != Kind::kBcast) {
    return static_cast<const std::byte*>(call.send);
  }
  const std::size_t at = call.kind == Kind::kAllgather ? part_begin(call, rank_) : 0;
  return static_cast<const std::byte*>(call.recv) + at;
}

// Of the operation that this rank has entered; the same on all ranks, once their signatures agree.
NodeGroup::Path NodeGroup::path_of(const NodeCall& call) const {
  const std::size_t bytes =
      call.led ? std::max(call.count * call.element, passed_on_bytes(call)) : input_bytes(call);
  if (call.order != nullptr && bytes > 0) return Path::kChunks;
  if (bytes <= Announcement::kDataBytes) return Path::kInLine;
  if (call.led) return Path::kSlots;
  // Where peers read one part each, chunks move fewer bytes.
  const bool one_look = call.kind != Kind::kAlltoall &&
                        (call.kind != Kind::kReduceScatterBlock || call.parts != nullptr);
  return one_look && usable_.fits_slots(bytes, size_) ? Path::kSlots : Path::kChunks;
}

// Up to 48 bytes travel in the cache line of the announcement, one transfer each way; inputs in
// slots lie there when it appears.
void NodeGroup::announce_input(const NodeCall& call, Path path) {
  if (path == Path::kInLine) return announce(call.signature, input_of(call), given_bytes(call));
  if (path == Path::kChunks && !whole_ && rank_ == 0) make_whole();
  if (path == Path::kChunks) return announce_offer(call);
  if (path == Path::kSlots && chooses_stores(call)) return announce_measured(call);
  if (path == Path::kSlots) {
    past_ = stores_.past(given_bytes(call));
    give(slot(rank_), input_of(call), given_bytes(call));
  }
  announce(call.signature, nullptr, 0);
}

void NodeGroup::announce_measured(const NodeCall& call) {
  const std::size_t bytes = given_bytes(call);
  const bool decides = rank_ == 0;
  const std::uint64_t begin = decides && stores_.measures(bytes) ? now_ns() : 0;
  past_ = stores_.past(bytes);
  give(slot(rank_), input_of(call), bytes);
  store_ns_ = begin != 0 ? now_ns() - begin : 0;
  const std::uint8_t next = decides ? stores_.decide(bytes) : std::uint8_t{0};
  announce(call.signature, &next, sizeof next);
}

void NodeGroup::give(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (!past_) return copy_out(target, source, bytes);
  ++stores_past_;
  copy_streaming(target, source, bytes);
}

// All have announced.
void NodeGroup::reduce_measured(const NodeCall& call) {
  const std::uint64_t begin = store_ns_ != 0 ? now_ns() : 0;
  combine(call, call.recv, call.count);
  if (begin != 0) stores_.took(given_bytes(call), store_ns_ + now_ns() - begin);
  stores_.follow(std::to_integer<std::uint8_t>(announcement(0).data[0]));
}

// target = operands_[0] op ... op operands_[size - 1]
void NodeGroup::combine(const NodeCall& call, void* target, std::size_t count) {
  if (size_ == 2) {
    call.reduce->pair(target, operands_[0], operands_[1], count);
  } else {
    call.reduce->many(target, operands_.data(), size_, count);
  }
}

template <class Given>
void NodeGroup::take_parts(const NodeCall& call, Given given) {
  auto* const output = static_cast<std::byte*>(call.recv);
  if (call.kind == Kind::kAllgather) {
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance), bytes = part_bytes(call, peer);
      if (bytes > 0) std::memcpy(output + part_begin(call, peer), given(peer), bytes);
    }
    return;
  }
  const std::size_t begin = part_begin(call, rank_), bytes = part_bytes(call, rank_);
  for (std::size_t rank = 0; rank < size_; ++rank) operands_[rank] = given(rank) + begin;
  operands_[rank_] = input_of(call) + begin;
  if (bytes > 0) combine(call, output + begin, bytes / call.element);
}

// All have announced the same.
void NodeGroup::take_inputs(const NodeCall& call, Path path) {
  const std::size_t block = call.count * call.element;
  auto* output = static_cast<std::byte*>(call.recv);
  if (block == 0) return;
  const auto given = [&](std::size_t rank) -> std::byte* {
    return path == Path::kInLine ? announcement(rank).data : slot(rank);
  };
  if (call.kind == Kind::kAllreduce) [[likely]] {
    for (std::size_t rank = 0; rank < size_; ++rank) operands_[rank] = given(rank);
    operands_[rank_] = input_of(call);
    if (chooses_stores(call)) return reduce_measured(call);
    return combine(call, output, call.count);
  }
  if (call.parts != nullptr) return take_parts(call, given);
  const auto copy = [&](std::byte* target, const std::byte* source) {
    if (target == source) return;  // in place
    if (path == Path::kInLine) return copy_few(target, source, block);
    std::memcpy(target, source, block);
  };
  switch (call.kind) {
    case Kind::kBcast:
      if (call.root == rank()) return;
      return copy(output, given(static_cast<std::size_t>(call.root)));
    case Kind::kAllgather:
      for (std::size_t distance = 1; distance < size_; ++distance) {
        const std::size_t peer = peer_at(distance);
        copy(output + peer * block, given(peer));
      }
      return copy(output + rank_ * block, input_of(call));
    case Kind::kReduceScatterBlock:
      for (std::size_t rank = 0; rank < size_; ++rank) {
        operands_[rank] = given(rank) + rank_ * block;
      }
      return combine(call, output, call.count);
    case Kind::kAlltoall:
      for (std::size_t rank = 0; rank < size_; ++rank) {
        const std::byte* const theirs = rank == rank_ ? input_of(call) : given(rank);
        const std::size_t bytes = split_bytes(call, rank, rank_);
        if (bytes > 0) {
          std::memcpy(output + got_before(call, rank_, rank),
                      theirs + given_before(call, rank, rank_), bytes);
        }
      }
      return;
    default:
      return;
  }
}

}  // namespace gradred
