#include "node/paths/single_copy.h"

#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/copy_bytes.h"
#include "base/errors.h"
#include "node/memory/array_memory.h"
#include "node/memory/copy.h"
#include "node/memory/process_memory.h"
#include "schedule/partition.h"

namespace gradred {
namespace {

// Whether peers may read this rank's result, and all of its input, of the same length. Of other
// calls they read what it gives.
bool offers_result(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kAllgather || kind == Kind::kBcast;
}

}  // namespace

bool SingleCopy::serves(const NodeCall& call) const {
  if (size_ == 1 || call.parts != nullptr || call.kind == Kind::kReduceScatterBlock) return false;
  const std::size_t least = options().single_copy_bytes;
  return call.input_bytes(size_) >= (call.kind == Kind::kAllreduce ? least : least / 2);
}

// Whether this rank does not overwrite what peers may still read: in a scan in place its own input,
// unless it is the first or the last rank.
bool SingleCopy::keeps_input(const NodeCall& call) const {
  return call.send != kInPlace || !sums_differ(call.kind) || rank_ == 0 || rank_ + 1 == size_;
}

void SingleCopy::offer(const NodeCall& call, ReadOffer& offer) {
  const bool with_result = offers_result(call.kind);
  const std::size_t bytes = with_result ? call.input_bytes(size_) : call.given_bytes(rank_, size_);
  if (beacon_ == 0) {
    beacon_ = now_ns() | 1;
    allow_reading();
  }
  offer.input = call.input(rank_);
  offer.output = static_cast<std::byte*>(call.recv);
  offer.beacon = &beacon_;
  offer.beacon_content = beacon_;
  if (!can_read_peers_ || !keeps_input(call)) return;
  if (call.flow != nullptr) return;  // the input is not there yet
  if (!can_be_read({offer.input, bytes})) return;
  if (with_result && !can_be_read({offer.output, bytes})) return;
  offer.says = ReadOffer::kReadable;
  offer_places(bytes, with_result, offer);
}

// To ask the kernel takes some microseconds. A program that makes its results anew has two in turn.
bool SingleCopy::can_be_read(std::span<const std::byte> array) {
  const auto known = [&](std::span<const std::byte> one) {
    return one.data() == array.data() && one.size() >= array.size();
  };
  if (array.empty() || std::ranges::any_of(readable_, known)) return true;
  if (!kernel_can_read(array.data(), array.size())) return false;
  std::ranges::rotate(readable_, readable_.end() - 1);
  readable_.front() = array;
  return true;
}

void SingleCopy::offer_places(std::size_t bytes, bool with_result, ReadOffer& offer) {
  const FilePlace input = file_place(offer.input, bytes);
  FilePlace output;
  if (with_result) output = offer.output == offer.input ? input : file_place(offer.output, bytes);
  offer.input_fd = input.fd;
  offer.input_serial = input.serial;
  offer.output_fd = output.fd;
  offer.output_serial = output.serial;
  if (!input) huge_pages_.use(offer.input, bytes);
  if (with_result && !output && offer.output != offer.input) huge_pages_.use(offer.output, bytes);
}

bool SingleCopy::all_can_read() {
  bool all = true;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    all &= (offer_of(rank).says & ReadOffer::kReadable) != 0;
  }
  if (!tried_peers_) try_peers();
  return all;
}

void SingleCopy::try_peers() {
  tried_peers_ = true;
  can_read_peers_ = true;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    const ReadOffer offer = offer_of(rank);
    std::uint64_t found = 0;
    const std::int64_t pid = group_.process(static_cast<int>(rank)).pid;
    const int error = read_process(pid, &found, offer.beacon, sizeof found);
    can_read_peers_ &= error == 0 && found == offer.beacon_content;
  }
}

// Returns where a peer's `bytes` bytes at `address` can be read in this process, or nullptr if only
// the kernel can read them.
const std::byte* SingleCopy::view_of(std::size_t peer, FilePlace place, const std::byte* address,
                                     std::size_t bytes) {
  if (!place) return nullptr;
  const ProcessId& process = group_.process(static_cast<int>(peer));
  // Ranks that are threads of one process share its addresses.
  if (process == group_.process(group_.rank())) return address;
  if (peer_arrays_.empty()) peer_arrays_.resize(size_);
  return peer_arrays_[peer].find(process, place, address, bytes);
}

// Reads a peer's input, or a part of it.
void SingleCopy::read_input(std::size_t peer, std::byte* target, std::size_t begin,
                            std::size_t bytes) {
  const ReadOffer offer = offer_of(peer);
  const std::byte* const source = offer.input + begin;
  const std::byte* const here = view_of(peer, offer.input_place(), source, bytes);
  if (here == nullptr) return read_peer(peer, target, source, bytes);
  ++mapped_reads_;
  copy_bytes(target, here, bytes);
}

void SingleCopy::read_peer(std::size_t peer, std::byte* target, const std::byte* source,
                           std::size_t bytes) {
  const std::int64_t pid = group_.process(static_cast<int>(peer)).pid;
  const int error = read_process(pid, target, source, bytes);
  if (error == 0) [[likely]] {
    return;
  }
  // The memory of an ending process disappears shortly before the process does.
  for (int look = 0; look < 100; ++look) {
    group_.glance();
    group_.check_peer(peer);
    usleep(1000);
  }
  throw TransportError("the memory of " + group_.names().of(peer) +
                       " cannot be read any more: " + std::strerror(error));
}

Steps SingleCopy::steps(const NodeCall& call, bool past) {
  ++operations_;
  const KindInfo& kind = info_of(call.kind);
  if (sums_differ(call.kind)) return fold_those_before(call);
  if (reduces(call.kind)) return reduce(call, past);
  if (kind.input == Part::kPieces) return swap(call);
  if (kind.input == Part::kRoots) return fetch(call);
  return kind.result == Part::kRoots ? collect(call) : gather(call);
}

// Step 1: this rank has read all peers. No rank leaves before that, since the input belongs to the
// program.
Steps SingleCopy::gather(NodeCall call) {
  auto* const output = static_cast<std::byte*>(call.recv);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    const std::size_t peer = peer_at(distance);
    read_input(peer, output + call.part_begin(peer), 0, call.part_bytes(peer));
  }
  std::byte* const own = output + call.part_begin(rank_);
  if (own != call.input(rank_)) copy_bytes(own, call.input(rank_), call.part_bytes(rank_));
  step_done(1);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    co_await step_of(peer_at(distance), 1);
  }
  steps_end(1);
}

// Steps as in gather().
Steps SingleCopy::swap(NodeCall call) {
  auto* const output = static_cast<std::byte*>(call.recv);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    const std::size_t peer = peer_at(distance);
    read_input(peer, output + call.got_before(rank_, peer, size_),
               call.given_before(peer, rank_, size_), call.split_bytes(peer, rank_, size_));
  }
  if (const std::size_t own = call.split_bytes(rank_, rank_, size_); own > 0) {
    copy_bytes(output + call.got_before(rank_, rank_, size_),
               call.input(rank_) + call.given_before(rank_, rank_, size_), own);
  }
  step_done(1);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    co_await step_of(peer_at(distance), 1);
  }
  steps_end(1);
}

// A broadcast or a scatter. Step 1: this rank has read its part of the root's data. The root leaves
// last.
Steps SingleCopy::fetch(NodeCall call) {
  const auto root = static_cast<std::size_t>(call.root);
  auto* const output = static_cast<std::byte*>(call.recv);
  const std::size_t begin = has_blocks(call.kind) ? call.part_begin(rank_) : 0;
  if (rank_ != root) {
    read_input(root, output, begin, call.bytes());
  } else if (call.input(rank_) + begin != output) {
    copy_bytes(output, call.input(rank_) + begin, call.bytes());
  }
  step_done(1);
  for (std::size_t distance = 1; rank_ == root && distance < size_; ++distance) {
    co_await step_of(peer_at(distance), 1);
  }
  steps_end(1);
}

// Step 1: the root has read all ranks. No rank leaves before that.
Steps SingleCopy::collect(NodeCall call) {
  const auto root = static_cast<std::size_t>(call.root);
  auto* const output = static_cast<std::byte*>(call.recv);
  if (rank_ == root) {
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance);
      read_input(peer, output + call.part_begin(peer), 0, call.bytes());
    }
    std::byte* const own = output + call.part_begin(rank_);
    if (own != call.input(rank_)) copy_bytes(own, call.input(rank_), call.bytes());
  }
  step_done(1);
  if (rank_ != root) co_await step_of(root, 1);
  steps_end(1);
}

// Step 1: this rank has read the ranks before it. It leaves when those after it have read it.
Steps SingleCopy::fold_those_before(NodeCall call) {
  const RankRange ranks =
      reduced_ranks(call.kind, static_cast<int>(rank_), static_cast<int>(size_));
  auto* const output = static_cast<std::byte*>(call.recv);
  if (ranks.count() == 1 && rank_ > 0) {
    read_input(0, output, 0, call.bytes());
  } else if (ranks.count() == 1 && output != call.input(rank_)) {
    copy_bytes(output, call.input(rank_), call.bytes());
  } else if (ranks.count() > 1) {
    fold_inputs(call, begin_reading(call, false, ranks), ranks);
  }
  step_done(1);
  for (std::size_t rank = rank_ + 1; rank < size_; ++rank) co_await step_of(rank, 1);
  steps_end(1);
}

// Works in blocks; rank r reduces part r of each block. Steps of block b: this rank has reduced its
// part (2b + 1); it has read the peers' results (2b + 2).
//
// In place, a part of the result overwrites inputs of this rank only after the owner of the part
// has read them, in its step 2b + 1. A rank's results are read until the peers' step 2b + 2, and no
// rank leaves before that.
Steps SingleCopy::reduce(NodeCall call, bool past) {
  const Reading reading = begin_reading(call, past, {0, static_cast<int>(size_)});
  const std::size_t per_block = std::max(size_, options().block_bytes / call.element);
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
  if (reading.threads > 1) Helpers::rest();
}

// The setup of a reduction of these ranks' inputs, once all ranks have announced it.
SingleCopy::Reading SingleCopy::begin_reading(const NodeCall& call, bool past, RankRange ranks) {
  const std::size_t bytes = call.bytes();
  bool by_kernel = false;
  inputs_.resize(size_);
  outputs_.resize(size_);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    const std::size_t peer = peer_at(distance);
    if (!ranks.has(static_cast<int>(peer))) continue;
    const ReadOffer offer = offer_of(peer);
    inputs_[peer] = view_of(peer, offer.input_place(), offer.input, bytes);
    outputs_[peer] = view_of(peer, offer.output_place(), offer.output, bytes);
    if (inputs_[peer] != nullptr) {
      ++mapped_reads_;
    } else {
      by_kernel = true;
    }
  }
  // If the kernel copies, pieces are as long as possible, since each call has a fixed cost.
  // Otherwise a piece of the result should stay in the first-level caches until it is written.
  constexpr std::size_t kShort = 32 << 10;
  const std::size_t threads = call.kind == Kind::kAllreduce ? threads_for(call) : 1;
  const std::size_t room =
      options().depth * options().chunk_bytes / (size_ * threads) / kCacheLine * kCacheLine;
  return {.past = past, .threads = threads, .piece = by_kernel ? room : std::min(room, kShort)};
}

// Sets the operands of these ranks. What only the kernel can read is copied to `scratch`, one piece
// after the other.
void SingleCopy::find_operands(const NodeCall& call, const Reading& reading, RankRange ranks,
                               Piece piece, std::byte* scratch, const void** operands) {
  for (std::size_t distance = 0; distance < size_; ++distance) {
    const std::size_t rank = peer_at(distance);
    if (!ranks.has(static_cast<int>(rank))) continue;
    if (rank == rank_) {
      operands[rank] = call.input(rank_) + piece.begin;
    } else if (inputs_[rank] != nullptr) {
      operands[rank] = inputs_[rank] + piece.begin;
    } else {
      read_peer(rank, scratch, offer_of(rank).input + piece.begin, piece.bytes);
      operands[rank] = scratch;
      scratch += reading.piece;
    }
  }
}

// Folds the inputs of these ranks, the first of them rank 0, into the result.
void SingleCopy::fold_inputs(const NodeCall& call, const Reading& reading, RankRange ranks) {
  const std::size_t per_piece = reading.piece / call.element;
  for (std::size_t done = 0; done < call.count; done += per_piece) {
    const std::size_t length = std::min(per_piece, call.count - done), at = done * call.element;
    find_operands(call, reading, ranks, {at, length * call.element}, chunk(rank_, 0),
                  operands_.data());
    fold(*call.reduce, call.element, static_cast<std::byte*>(call.recv) + at,
         {operands_.data(), static_cast<std::size_t>(ranks.count())}, length);
  }
}

// Computes this rank's part of the result: `count` elements from `first` on. Each thread has room
// for one piece of the result, then pieces of the peers.
void SingleCopy::reduce_part(const NodeCall& call, const Reading& reading, std::size_t first,
                             std::size_t count) {
  share(call, reading.threads, count, [&](Slice slice, const void** operands, std::size_t index) {
    reduce_slice(call, reading, {first + slice.begin, slice.count},
                 chunk(rank_, 0) + index * size_ * reading.piece, operands);
  });
}

void SingleCopy::reduce_slice(const NodeCall& call, const Reading& reading, Slice elements,
                              std::byte* scratch, const void** operands) {
  auto* const output = static_cast<std::byte*>(call.recv);
  const std::size_t per_piece = reading.piece / call.element;
  for (std::size_t done = 0; done < elements.count; done += per_piece) {
    const std::size_t length = std::min(per_piece, elements.count - done);
    const Piece piece{(elements.begin + done) * call.element, length * call.element};
    find_operands(call, reading, {0, static_cast<int>(size_)}, piece, scratch + reading.piece,
                  operands);
    if (reading.past) {
      combine(call, scratch, operands, length);
      copy_streaming(output + piece.begin, scratch, piece.bytes);
      for (const std::byte* const input : inputs_) {
        if (input != nullptr) hand_back(input + piece.begin, piece.bytes);
      }
    } else {
      combine(call, output + piece.begin, operands, length);
    }
  }
}

// Fetches a peer's part of the result.
void SingleCopy::fetch_part(const NodeCall& call, const Reading& reading, std::size_t peer,
                            std::size_t first, std::size_t count) {
  share(call, reading.threads, count, [&](Slice slice, const void**, std::size_t index) {
    fetch_slice(call, reading, peer,
                {(first + slice.begin) * call.element, slice.count * call.element},
                chunk(rank_, 0) + index * size_ * reading.piece);
  });
}

// In place, the peer has read the lines to be written. Writing them past the caches is much faster
// than fetching them from the peer's cache first.
void SingleCopy::fetch_slice(const NodeCall& call, const Reading& reading, std::size_t peer,
                             Piece piece, std::byte* scratch) {
  std::byte* const target = static_cast<std::byte*>(call.recv) + piece.begin;
  const bool past = reading.past && call.send == kInPlace;
  if (const std::byte* const theirs = outputs_[peer]; theirs != nullptr) {
    if (!past) {
      copy_bytes(target, theirs + piece.begin, piece.bytes);
    } else {
      copy_streaming(target, theirs + piece.begin, piece.bytes);
    }
    if (reading.past) hand_back(theirs + piece.begin, piece.bytes);
    return;
  }
  const std::byte* const theirs = offer_of(peer).output + piece.begin;
  if (!past) return read_peer(peer, target, theirs, piece.bytes);
  for (std::size_t done = 0; done < piece.bytes; done += reading.piece) {
    const std::size_t length = std::min(reading.piece, piece.bytes - done);
    read_peer(peer, scratch, theirs + done, length);
    copy_streaming(target + done, scratch, length);
  }
}

}  // namespace gradred
