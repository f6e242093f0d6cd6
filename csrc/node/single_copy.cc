#include "node/single_copy.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/errors.h"
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

// ---- which way ----------------------------------------------------------------------------------

namespace {
constexpr unsigned kFirst = 6;  // operations that try all ways in turn
}  // namespace

FasterWay::Times& FasterWay::of(Kind kind, std::size_t bytes) {
  const auto power = static_cast<std::size_t>(std::bit_width(bytes));
  return times_[static_cast<std::size_t>(kind) % times_.size()][power % times_[0].size()];
}

std::size_t FasterWay::Times::fastest() const {
  std::size_t found = 0;
  for (std::size_t way = 1; way < ns.size(); ++way) {
    if (ns[way] != 0 && ns[way] < ns[found]) found = way;
  }
  return found;
}

// Each way is tried, and the slower ones again now and then, since ranks move from core to core.
Way FasterWay::choose(Kind kind, std::size_t bytes) {
  constexpr unsigned kAgain = 64;
  const std::size_t ways = kind == Kind::kAllreduce ? 3 : 2;  // of others peers read no results
  Times& times = of(kind, bytes);
  const unsigned turn = times.operations++;
  std::size_t way = times.fastest();
  if (turn < kFirst) {
    way = turn % ways;
  } else if (turn % kAgain == 0) {
    way = (way + 1 + turn / kAgain % (ways - 1)) % ways;
  }
  return static_cast<Way>(way);
}

void FasterWay::took(Kind kind, std::size_t bytes, Way way, std::uint64_t ns) {
  constexpr double kShare = 0.3;  // of the new one
  const auto of_power = static_cast<double>(std::bit_floor(bytes)) / static_cast<double>(bytes);
  double& known = of(kind, bytes).ns[static_cast<std::size_t>(way)];
  const double now = static_cast<double>(ns) * of_power;
  if (known == 0 ||
      of(kind, bytes).operations <= kFirst) {  // memory may be touched for the first time
    known = known == 0 ? now : std::min(known, now);
  } else {
    known += kShare * (now - known);
  }
}

// ---- an operation -------------------------------------------------------------------------------

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

// Now, if this rank measures what the operation takes; else 0.
std::uint64_t NodeGroup::begin_measuring(const NodeCall& call) const {
  return may_copy_once(call) && rank_ == decider(call) ? now_ns() : 0;
}

void NodeGroup::end_measuring(const NodeCall& call, std::uint64_t begin) {
  const bool past = (offer_of(rank_).says & ReadOffer::kPast) != 0;
  const Way read = past ? Way::kReadingPast : Way::kReading;
  const Way way = copies_once(call) ? read : Way::kChunks;
  faster_way_.took(call.kind, input_bytes(call), way, now_ns() - begin);
}

// What ranks say of a long operation beside its signature.
void NodeGroup::announce_offer(const NodeCall& call) {
  ReadOffer offer{};
  if (may_copy_once(call)) offer = offer_memory(call);
  if (call.device != nullptr) offer_arrays(*call.device, offer);
  announce(call.signature, &offer, sizeof offer);
}

ReadOffer NodeGroup::offer_memory(const NodeCall& call) {
  const bool swaps = call.kind == Kind::kAlltoall;
  const std::size_t bytes = swaps ? given_bytes(call) : input_bytes(call);
  if (beacon_ == 0) {
    beacon_ = now_ns() | 1;
    allow_reading();
  }
  ReadOffer offer{input_of(call), static_cast<std::byte*>(call.recv), &beacon_, beacon_, 0};
  if (can_read_peers_ && call.flow == nullptr) {  // else it is not there yet
    const bool known = readable_.input == offer.input && readable_.output == offer.output &&
                       bytes <= readable_bytes_;
    const auto readable = [bytes](const void* memory) {
      return bytes == 0 || kernel_can_read(memory, bytes);
    };
    if (known || (readable(offer.input) && (swaps || readable(offer.output)))) {
      offer.says = ReadOffer::kReadable;
      readable_ = swaps ? ReadOffer{} : offer;
      readable_bytes_ = bytes;
    }
  }
  // By what end_measuring() knows it as, and not by what this rank gives.
  if (rank_ == decider(call)) {
    const Way way = faster_way_.choose(call.kind, input_bytes(call));
    if (way != Way::kChunks) offer.says |= ReadOffer::kWanted;
    if (way == Way::kReadingPast) offer.says |= ReadOffer::kPast;
  }
  return offer;
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

void NodeGroup::read_peer(std::size_t peer, void* target, const void* source, std::size_t bytes) {
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
    read_peer(peer, output + part_begin(call, peer), offer_of(peer).input, part_bytes(call, peer));
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
    read_peer(peer, output + got_before(call, rank_, peer),
              offer_of(peer).input + given_before(call, peer, rank_),
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
  if (rank_ != root) read_peer(root, call.recv, offer_of(root).input, call.count * call.element);
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
  const std::byte* const input = input_of(call);
  auto* const output = static_cast<std::byte*>(call.recv);
  const bool streams = (offer_of(decider(call)).says & ReadOffer::kPast) != 0;
  std::byte* const scratch = chunk(rank_, 0);  // one piece of the result, then the peers'
  // As long as there is room: each call of the kernel's takes its time.
  const std::size_t piece = options_.depth * options_.chunk_bytes / size_ / kCacheLine * kCacheLine;
  const std::size_t per_piece = piece / call.element;
  const std::size_t per_block = std::max(size_, options_.block_bytes / call.element);
  std::size_t step = 0;
  for (std::size_t begin = 0; begin < call.count; begin += per_block, step += 2) {
    const Partition parts{std::min(per_block, call.count - begin), size_};
    const std::size_t first = begin + parts.begin(rank_), last = first + parts.length(rank_);
    for (std::size_t at = first; at < last; at += per_piece) {
      const std::size_t count = std::min(per_piece, last - at), place = at * call.element;
      std::byte* into = scratch + piece;
      for (std::size_t distance = 1; distance < size_; ++distance, into += piece) {
        const std::size_t peer = peer_at(distance);
        read_peer(peer, into, offer_of(peer).input + place, count * call.element);
        operands_[peer] = into;
      }
      operands_[rank_] = input + place;
      if (streams) {
        combine(call, scratch, count);
        copy_streaming(output + place, scratch, count * call.element);
      } else {
        combine(call, output + place, count);
      }
    }
    step_done(step + 1);
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance);
      co_await step_of(peer, step + 1);
    }
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance);
      const std::size_t place = (begin + parts.begin(peer)) * call.element;
      read_peer(peer, output + place, offer_of(peer).output + place,
                parts.length(peer) * call.element);
    }
    step_done(step + 2);
  }
  for (std::size_t distance = 1; distance < size_; ++distance) {
    co_await step_of(peer_at(distance), step);
  }
  steps_end(step);
}

}  // namespace gradred
