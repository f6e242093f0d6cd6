#include "node/single_copy.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/errors.h"
#include "node/array_memory.h"
#include "node/copy.h"
#include "node/group.h"
#include "schedule/partition.h"

namespace gradred {

int read_process(std::int64_t pid, void* target, const void* source, std::size_t bytes) noexcept {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  while (bytes > 0) {
    const iovec local{to, bytes}, remote{const_cast<std::byte*>(from), bytes};
    const ssize_t done = process_vm_readv(static_cast<pid_t>(pid), &local, 1, &remote, 1, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return done < 0 ? errno : EFAULT;
    to += done;
    from += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return 0;
}

bool kernel_can_read(const void* memory, std::size_t bytes) noexcept {
  const auto* const first = static_cast<const std::byte*>(memory);
  std::byte found{};
  return read_process(getpid(), &found, first, 1) == 0 &&
         read_process(getpid(), &found, first + bytes - 1, 1) == 0;
}

void allow_reading() noexcept {
#ifdef PR_SET_PTRACER
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // an error: no Yama
#endif
}

bool NodeGroup::may_copy_once(const NodeCall& call) const {
  if (size_ == 1 || call.parts != nullptr) return false;
  const std::size_t least = options_.single_copy_bytes;
  switch (call.kind) {
    case Kind::kAllreduce:
      return input_bytes(call) >= least;
    case Kind::kAllgather:
    case Kind::kBcast:
    case Kind::kAlltoall:
      return input_bytes(call) >= least / 2;
    default:
      return false;
  }
}

// Who measures. The root of a broadcast by chunks is done before the others are.
std::size_t NodeGroup::decider(const NodeCall& call) const {
  return call.kind == Kind::kBcast && call.root == 0 ? 1 : 0;
}

// Whether rank 0, or who decides in its place, measures what such an operation takes.
bool NodeGroup::measures_ways(const NodeCall& call) const {
  return size_ > 1 && !call.led && input_bytes(call) > 0;
}

// Now, if this rank measures what the operation takes; else 0.
std::uint64_t NodeGroup::begin_measuring(const NodeCall& call) const {
  const bool is_there = call.flow == nullptr;  // the input: else it is waited for
  return measures_ways(call) && is_there && rank_ == decider(call) ? now_ns() : 0;
}

void NodeGroup::end_measuring(const NodeCall& call, std::uint64_t begin) {
  Way way = past_ ? Way::kChunksPast : Way::kChunks;
  if (may_copy_once(call) && copies_once(call)) {
    const bool past = (offer_of(rank_).says & ReadOffer::kPast) != 0;
    way = past ? Way::kReadingPast : Way::kReading;
  }
  faster_way_->took(chosen_for_, way, now_ns() - begin);
}

// Where an operation goes chunk by chunk: as who decides has said, if this was meant.
bool NodeGroup::writes_past(const NodeCall& call) const {
  if (measures_ways(call)) {
    const auto says = offer_of(decider(call)).says;
    if ((says & ReadOffer::kWanted) == 0) return (says & ReadOffer::kPast) != 0;
  }
  return stores_.past(input_bytes(call));
}

// What ranks say of a long operation beside its signature.
void NodeGroup::announce_offer(const NodeCall& call) {
  ReadOffer offer{};
  if (may_copy_once(call)) offer_memory(call, offer);
  if (measures_ways(call) && rank_ == decider(call)) choose_way(call, offer);
  if (call.device != nullptr) offer_arrays(*call.device, offer);
  announce(call.signature, &offer, sizeof offer);
}

void NodeGroup::choose_way(const NodeCall& call, ReadOffer& offer) {
  if (faster_way_ == nullptr) faster_way_ = std::make_unique<FasterWay>();
  chosen_for_ = {.kind = call.kind,
                 .bytes = input_bytes(call),
                 .reads = may_copy_once(call),
                 .in_place = call.send == kInPlace,
                 .mapped = offer.input_place() && offer.output_place()};
  const Way way = faster_way_->choose(chosen_for_);
  if (way >= Way::kReading) offer.says |= ReadOffer::kWanted;
  if (way == Way::kChunksPast || way == Way::kReadingPast) offer.says |= ReadOffer::kPast;
}

void NodeGroup::offer_memory(const NodeCall& call, ReadOffer& offer) {
  const bool swaps = call.kind == Kind::kAlltoall;
  const std::size_t bytes = swaps ? given_bytes(call) : input_bytes(call);
  if (beacon_ == 0) {
    beacon_ = now_ns() | 1;
    allow_reading();
  }
  offer.input = input_of(call);
  offer.output = static_cast<std::byte*>(call.recv);
  offer.beacon = &beacon_;
  offer.beacon_content = beacon_;
  if (!can_read_peers_ || call.flow != nullptr) return;  // with a flow it is not there yet
  const bool known = readable_.input == offer.input && readable_.output == offer.output &&
                     bytes <= readable_bytes_;
  const auto readable = [bytes](const void* memory) {
    return bytes == 0 || kernel_can_read(memory, bytes);
  };
  if (!known && !(readable(offer.input) && (swaps || readable(offer.output)))) return;
  offer.says = ReadOffer::kReadable;
  readable_ = swaps ? ReadOffer{} : offer;
  readable_bytes_ = bytes;
  offer_places(bytes, swaps, offer);
}

void NodeGroup::offer_places(std::size_t bytes, bool swaps, ReadOffer& offer) {
  const FilePlace input = file_place(offer.input, bytes);
  FilePlace output;
  if (!swaps) output = offer.output == offer.input ? input : file_place(offer.output, bytes);
  offer.input_fd = input.fd;
  offer.input_serial = input.serial;
  offer.output_fd = output.fd;
  offer.output_serial = output.serial;
}

ReadOffer NodeGroup::offer_of(std::size_t rank) const {
  ReadOffer offer;
  std::memcpy(&offer, announcement(rank).data, sizeof offer);
  return offer;
}

// All have announced. What each rank finds here follows from what all of them have said.
bool NodeGroup::copies_once(const NodeCall& call) {
  bool all = true;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    all &= (offer_of(rank).says & ReadOffer::kReadable) != 0;
  }
  if (!tried_peers_) try_peers();
  return whole_ && all && (offer_of(decider(call)).says & ReadOffer::kWanted) != 0;
}

// The next operation knows.
void NodeGroup::try_peers() {
  tried_peers_ = true;
  can_read_peers_ = true;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    const ReadOffer offer = offer_of(rank);
    std::uint64_t found = 0;
    const int error = read_process(processes_[rank].pid, &found, offer.beacon, sizeof found);
    can_read_peers_ &= error == 0 && found == offer.beacon_content;
  }
}

// Where a peer's `bytes` at `address` can be read here; nullptr: by the kernel alone.
const std::byte* NodeGroup::view_of(std::size_t peer, FilePlace place, const std::byte* address,
                                    std::size_t bytes) {
  if (!place) return nullptr;
  if (processes_[peer] == processes_[rank_]) return address;  // ranks that are threads
  if (peer_arrays_.empty()) peer_arrays_.resize(size_);
  return peer_arrays_[peer].find(processes_[peer], place, address, bytes);
}

// What a peer has offered as its input, or a part of that.
void NodeGroup::read_input(std::size_t peer, std::byte* target, std::size_t begin,
                           std::size_t bytes) {
  const ReadOffer offer = offer_of(peer);
  const std::byte* const source = offer.input + begin;
  const std::byte* const here = view_of(peer, offer.input_place(), source, bytes);
  if (here == nullptr) return read_peer(peer, target, source, bytes);
  ++mapped_reads_;
  std::memcpy(target, here, bytes);
}

void NodeGroup::read_peer(std::size_t peer, std::byte* target, const std::byte* source,
                          std::size_t bytes) {
  const int error = read_process(processes_[peer].pid, target, source, bytes);
  if (error == 0) [[likely]] {
    return;
  }
  for (int look = 0; look < 100; ++look) {  // a process that ends has no memory a moment before
    glance();
    check_peer(peer);
    usleep(1000);
  }
  throw TransportError("the memory of " + names_.of(peer) +
                       " cannot be read any more: " + std::strerror(error));
}

Steps NodeGroup::single_copy(const NodeCall& call) {
  ++single_copies_;
  switch (call.kind) {
    case Kind::kAllgather:
      return gather_by_reading(call);
    case Kind::kBcast:
      return fetch_by_reading(call);
    case Kind::kAlltoall:
      return swap_by_reading(call);
    default:
      return reduce_by_reading(call);
  }
}

// Step 1: this rank has read all peers. Nobody leaves before, since the input is the program's.
Steps NodeGroup::gather_by_reading(NodeCall call) {
  auto* const output = static_cast<std::byte*>(call.recv);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    const std::size_t peer = peer_at(distance);
    read_input(peer, output + part_begin(call, peer), 0, part_bytes(call, peer));
  }
  std::byte* const own = output + part_begin(call, rank_);
  if (own != input_of(call)) std::memcpy(own, input_of(call), part_bytes(call, rank_));
  step_done(1);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    co_await step_of(peer_at(distance), 1);
  }
  steps_end(1);
}

// As gather_by_reading().
Steps NodeGroup::swap_by_reading(NodeCall call) {
  auto* const output = static_cast<std::byte*>(call.recv);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    const std::size_t peer = peer_at(distance);
    read_input(peer, output + got_before(call, rank_, peer), given_before(call, peer, rank_),
               split_bytes(call, peer, rank_));
  }
  if (const std::size_t own = split_bytes(call, rank_, rank_); own > 0) {
    std::memcpy(output + got_before(call, rank_, rank_),
                input_of(call) + given_before(call, rank_, rank_), own);
  }
  step_done(1);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    co_await step_of(peer_at(distance), 1);
  }
  steps_end(1);
}

// Step 1: this rank has read the root, which leaves last.
Steps NodeGroup::fetch_by_reading(NodeCall call) {
  const auto root = static_cast<std::size_t>(call.root);
  auto* const output = static_cast<std::byte*>(call.recv);
  if (rank_ != root) read_input(root, output, 0, call.count * call.element);
  step_done(1);
  for (std::size_t distance = 1; rank_ == root && distance < size_; ++distance) {
    co_await step_of(peer_at(distance), 1);
  }
  steps_end(1);
}

// In blocks, of each of which rank r reduces part r. Steps of block b: this rank has reduced its
// part of it (2 b + 1), it has read the peers' (2 b + 2).
//
// A peer's input is read up to its part's step 2 b + 1 there, and only then overwritten here in
// place; its result is read up to 2 b + 2, and nobody leaves before.
Steps NodeGroup::reduce_by_reading(NodeCall call) {
  const Reading reading = begin_reading(call);
  const std::size_t per_block = std::max(size_, options_.block_bytes / call.element);
  std::size_t step = 0;
  for (std::size_t begin = 0; begin < call.count; begin += per_block, step += 2) {
    const Partition parts{std::min(per_block, call.count - begin), size_};
    reduce_part(call, reading, begin + parts.begin(rank_), parts.length(rank_));
    step_done(step + 1);
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance);
      co_await step_of(peer, step + 1);
    }
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance);
      fetch_part(call, reading, peer, begin + parts.begin(peer), parts.length(peer));
    }
    step_done(step + 2);
  }
  for (std::size_t distance = 1; distance < size_; ++distance) {
    co_await step_of(peer_at(distance), step);
  }
  steps_end(step);
}

// What is the same for all of an allreduce, once all have announced.
NodeGroup::Reading NodeGroup::begin_reading(const NodeCall& call) {
  const std::size_t bytes = call.count * call.element;
  bool by_kernel = false;
  inputs_.resize(size_);
  outputs_.resize(size_);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    const std::size_t peer = peer_at(distance);
    const ReadOffer offer = offer_of(peer);
    inputs_[peer] = view_of(peer, offer.input_place(), offer.input, bytes);
    outputs_[peer] = view_of(peer, offer.output_place(), offer.output, bytes);
    if (inputs_[peer] != nullptr) {
      ++mapped_reads_;
    } else {
      by_kernel = true;
    }
  }
  // As long as there is room, where each piece is a call of the kernel's, which takes its time;
  // else so that a piece of the result stays in the first caches until it is written.
  constexpr std::size_t kShort = 32 << 10;
  const std::size_t room = options_.depth * options_.chunk_bytes / size_ / kCacheLine * kCacheLine;
  return {.past = (offer_of(decider(call)).says & ReadOffer::kPast) != 0,
          .piece = by_kernel ? room : std::min(room, kShort)};
}

// This rank's part of the result, `count` elements from `first` on.
void NodeGroup::reduce_part(const NodeCall& call, const Reading& reading, std::size_t first,
                            std::size_t count) {
  auto* const output = static_cast<std::byte*>(call.recv);
  std::byte* const scratch = chunk(rank_, 0);  // one piece of the result, then the peers'
  const std::size_t per_piece = reading.piece / call.element;
  for (std::size_t done = 0; done < count; done += per_piece) {
    const std::size_t length = std::min(per_piece, count - done);
    const std::size_t place = (first + done) * call.element;
    std::byte* into = scratch + reading.piece;
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance);
      if (inputs_[peer] != nullptr) {
        operands_[peer] = inputs_[peer] + place;
        continue;
      }
      read_peer(peer, into, offer_of(peer).input + place, length * call.element);
      operands_[peer] = into;
      into += reading.piece;
    }
    operands_[rank_] = input_of(call) + place;
    if (reading.past) {
      combine(call, scratch, length);
      copy_streaming(output + place, scratch, length * call.element);
      for (const std::byte* const input : inputs_) {
        if (input != nullptr) hand_back(input + place, length * call.element);
      }
    } else {
      combine(call, output + place, length);
    }
  }
}

// A peer's part of the result. In place the peer has read these lines: to write them, too, past the
// caches is far faster than to get them back from the peer's first.
void NodeGroup::fetch_part(const NodeCall& call, const Reading& reading, std::size_t peer,
                           std::size_t first, std::size_t count) {
  const std::size_t place = first * call.element, bytes = count * call.element;
  std::byte* const target = static_cast<std::byte*>(call.recv) + place;
  const bool past = reading.past && call.send == kInPlace;
  if (const std::byte* const theirs = outputs_[peer]; theirs != nullptr) {
    if (!past) {
      std::memcpy(target, theirs + place, bytes);
    } else {
      copy_streaming(target, theirs + place, bytes);
    }
    if (reading.past) hand_back(theirs + place, bytes);
    return;
  }
  const std::byte* const theirs = offer_of(peer).output + place;
  if (!past) return read_peer(peer, target, theirs, bytes);
  std::byte* const scratch = chunk(rank_, 0);
  for (std::size_t done = 0; done < bytes; done += reading.piece) {
    const std::size_t length = std::min(reading.piece, bytes - done);
    read_peer(peer, scratch, theirs + done, length);
    copy_streaming(target + done, scratch, length);
  }
}

}  // namespace gradred
