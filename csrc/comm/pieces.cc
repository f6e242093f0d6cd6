#include "comm/pieces.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/copy_bytes.h"
#include "base/mixed.h"
#include "comm/communicator.h"

namespace gradred {
namespace {

constexpr std::size_t kMostPacked = std::size_t{4} << 20;  // bytes of a bucket
// Packing costs two copies, and a call of its own costs what passing a message costs. In shared
// memory that is as much as copying some KiB, between hosts as much as copying some hundred KiB.
constexpr std::size_t kPackedInMemory = 4 << 10, kPackedInMessages = 256 << 10;

struct Extent {
  const std::byte *begin, *end;
  std::size_t piece;
  bool is_result;
};

}  // namespace

HostVector::HostVector(std::size_t bytes, DeviceMemory* device) {
  if (device != nullptr) {
    for_device_ = HostAllocation(*device, bytes);
  } else {
    plain_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  }
}

void PieceCopies::add(Memory memory, const CopyPart& part, const After& after) {
  if (part.bytes == 0) return;
  if (memory.is_host()) {
    copy_bytes(part.target, part.source, part.bytes);
    return;
  }
  const auto takes_it = [&](const Batch& batch) {
    return batch.after.device == memory.device() && batch.stream == nullptr;
  };
  auto found = std::ranges::find_if(batches_, takes_it);
  if (found == batches_.end()) {
    found = batches_.insert(found, {.after = {.device = memory.device()}});
  }
  found->parts.push_back(part);
  auto& events = found->after.events;
  for (const auto& event : after.events) {
    if (std::ranges::find(events, event) == events.end()) events.push_back(event);
  }
}

bool PieceCopies::Batch::ready() {
  if (stream == nullptr) {
    stream = after.open_stream();
    stream->copy_many(parts);
    parts.clear();
  }
  return stream->ready();
}

bool PieceCopies::ready() {
  bool all = true;  // every batch is asked, so that all begin
  for (Batch& batch : batches_) all &= batch.ready();
  if (all) batches_.clear();
  return all;
}

void PieceCopies::finish() {
  while (!ready()) std::this_thread::yield();
}

bool PieceCopies::settle() noexcept {
  bool well = true;
  std::erase_if(batches_, [](const Batch& batch) { return batch.stream == nullptr; });
  for (Batch& batch : batches_) well &= batch.stream->settle();
  return well;
}

DeviceMemory* Bucket::device() const {
  for (const Piece& piece : pieces) {
    if (DeviceMemory* const found = piece.device()) return found;
  }
  return nullptr;
}

void Bucket::pack(std::byte* vector, PieceCopies& copies) const {
  for (const Piece& piece : pieces) {
    const CopyPart part{vector, piece.in.data, piece.bytes()};
    copies.add(piece.in.memory, part, piece.after);
    vector += piece.bytes();
  }
}

void Bucket::unpack(const std::byte* vector, PieceCopies& copies) const {
  for (const Piece& piece : pieces) {
    const CopyPart part{piece.out.data, vector, piece.bytes()};
    copies.add(piece.out.memory, part, piece.after);
    vector += piece.bytes();
  }
}

std::size_t packed_up_to(const Communicator& comm) {
  return comm.node_path().serves_all() || comm.size() == 1 ? kPackedInMemory : kPackedInMessages;
}

std::vector<Bucket> buckets_of(std::span<const Piece> pieces, std::size_t packed_up_to) {
  std::vector<DType> types;
  for (const Piece& piece : pieces) {
    if (std::ranges::find(types, piece.dtype) == types.end()) types.push_back(piece.dtype);
  }
  std::vector<Bucket> buckets;
  for (const DType type : types) {
    Bucket open{.pieces = {}, .dtype = type};
    const auto close = [&] {
      if (!open.pieces.empty())
        buckets.push_back(std::exchange(open, {.pieces = {}, .dtype = type}));
    };
    for (const Piece& piece : pieces) {
      if (piece.dtype != type) continue;
      if (piece.bytes() > packed_up_to) {
        buckets.push_back({.pieces = {piece}, .dtype = type, .count = piece.count});
        continue;
      }
      if (open.bytes() + piece.bytes() > kMostPacked) close();
      open.pieces.push_back(piece);
      open.count += piece.count;
    }
    close();
  }
  if (buckets.empty()) buckets.emplace_back();
  return buckets;
}

// Walks over all memory in the order of its addresses: a range that begins before an earlier one
// has ended shares memory with it.
std::optional<SharedMemory> shared_memory_of(std::span<const Piece> pieces) {
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.count == 0) continue;
    const auto* result = static_cast<const std::byte*>(piece.out.data);
    extents.push_back({result, result + piece.bytes(), i, true});
    if (piece.in_place()) continue;
    const auto* input = static_cast<const std::byte*>(piece.in.data);
    extents.push_back({input, input + piece.bytes(), i, false});
  }
  std::ranges::sort(extents, {}, &Extent::begin);
  Extent last_result{}, last_input{};  // those that end last
  std::optional<SharedMemory> found;
  for (const Extent& extent : extents) {
    if (extent.is_result && extent.begin < last_result.end) {
      return SharedMemory{extent.piece, last_result.piece, true};
    }
    if (!extent.is_result && extent.begin < last_result.end) {
      found = {last_result.piece, extent.piece, false};
    }
    if (extent.is_result && extent.begin < last_input.end) {
      found = {extent.piece, last_input.piece, false};
    }
    Extent& last = extent.is_result ? last_result : last_input;
    if (extent.end > last.end) last = extent;
  }
  return found;
}

std::uint64_t hash_of(std::span<const Piece> pieces) {
  std::uint64_t hash = mixed(1, pieces.size());
  for (const Piece& piece : pieces) {
    hash = mixed(mixed(hash, static_cast<std::uint64_t>(piece.dtype)), piece.layout);
  }
  return hash;
}

}  // namespace gradred
