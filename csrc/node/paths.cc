// Collective operations within one host: which path an operation takes, and those on which each
// rank publishes once. In all of them an element is folded in order of rank, so all ranks get the
// same bits, whatever the path.
#include <algorithm>
#include <cstring>

#include "node/copy.h"
#include "node/group.h"

namespace gradred {

void NodeGroup::run(const NodeCall& call, Poll* poll) {
  operate(poll, [&] {
    const Path path = path_of(call);
    announce_input(call, path);
    await_announcements(call.signature);
    if (path != Path::kChunks) return take_inputs(call, path);
    Steps steps = chunks(call);
    while (!steps.advance()) waiter_.wait(steps.awaited());
  });
}

// What a rank gives to all peers together.
std::size_t NodeGroup::input_bytes(const NodeCall& call) const {
  const std::size_t bytes = call.count * call.element;
  return call.kind == Kind::kReduceScatterBlock ? size_ * bytes : bytes;
}

const std::byte* NodeGroup::input_of(const NodeCall& call) const {
  if (call.send != kInPlace && call.kind != Kind::kBcast) {
    return static_cast<const std::byte*>(call.send);
  }
  const std::size_t at = call.kind == Kind::kAllgather ? rank_ * call.count * call.element : 0;
  return static_cast<const std::byte*>(call.recv) + at;
}

// Of the operation that this rank has entered; the same on all ranks, once their signatures agree.
NodeGroup::Path NodeGroup::path_of(const NodeCall& call) const {
  const std::size_t bytes = input_bytes(call);
  if (bytes <= Announcement::kDataBytes) return Path::kInLine;
  const bool fits = call.kind == Kind::kAllreduce && usable_.fits_slots(bytes, size_);
  return fits ? Path::kSlots : Path::kChunks;
}

// Up to 48 bytes travel in the cache line of the announcement, one transfer each way; inputs in
// slots lie there when it appears.
void NodeGroup::announce_input(const NodeCall& call, Path path) {
  if (path == Path::kInLine) {
    const bool gives = call.kind != Kind::kBcast || call.root == rank();
    return announce(call.signature, input_of(call), gives ? input_bytes(call) : 0);
  }
  if (path == Path::kChunks && !whole_ && rank_ == 0) make_whole();
  if (path == Path::kSlots) copy_out(slot(rank_), input_of(call), input_bytes(call));
  announce(call.signature, nullptr, 0);
}

// target = operands_[0] op ... op operands_[size - 1]
void NodeGroup::combine(const NodeCall& call, void* target, std::size_t count) {
  if (size_ == 2) {
    call.reduce->pair(target, operands_[0], operands_[1], count);
  } else {
    call.reduce->many(target, operands_.data(), size_, count);
  }
}

// All have announced the same.
void NodeGroup::take_inputs(const NodeCall& call, Path path) {
  const std::size_t block = call.count * call.element;
  auto* output = static_cast<std::byte*>(call.recv);
  if (block == 0) return;
  if (call.kind == Kind::kAllreduce) [[likely]] {
    for (std::size_t rank = 0; rank < size_; ++rank) {
      operands_[rank] = path == Path::kInLine ? announcement(rank).data : slot(rank);
    }
    operands_[rank_] = input_of(call);
    return combine(call, output, call.count);
  }
  switch (call.kind) {
    case Kind::kBcast:
      if (call.root == rank()) return;
      return copy_few(output, announcement(static_cast<std::size_t>(call.root)).data, block);
    case Kind::kAllgather:
      for (std::size_t rank = 0; rank < size_; ++rank) {
        copy_few(output + rank * block, announcement(rank).data, block);
      }
      return;
    case Kind::kReduceScatterBlock:
      for (std::size_t rank = 0; rank < size_; ++rank) {
        operands_[rank] = announcement(rank).data + rank_ * block;
      }
      return combine(call, output, call.count);
    default:
      return;
  }
}

}  // namespace gradred
