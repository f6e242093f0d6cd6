#include "comm/pieces.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/communicator.h"

namespace gradred {
namespace {

constexpr std::size_t kMostPacked = std::size_t{4} << 20;  // bytes of a bucket
// Packing costs two copies, a call of its own what passing a message costs: in shared memory as
// much as copying some KiB, between hosts some hundred.
constexpr std::size_t kPackedInMemory = 4 << 10, kPackedInMessages = 256 << 10;

// A word at a time: mix() of base/signature.h takes a byte, which is most of the work here.
constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 32;
}

struct Extent {
  const std::byte *begin, *end;
  bool result;
};

}  // namespace

std::uint64_t layout_hash(std::span<const std::int64_t> shape, std::span<const int> order) {
  std::uint64_t hash = mixed(1, shape.size());
  for (const std::int64_t length : shape) hash = mixed(hash, static_cast<std::uint64_t>(length));
  for (const int axis : order) hash = mixed(hash, static_cast<std::uint64_t>(axis));
  return hash;
}

void PieceCopies::copy(const Piece& piece, Memory memory, void* target, const void* source) {
  if (piece.count == 0) return;
  if (memory.is_host()) {
    std::memcpy(target, source, piece.bytes());
    return;
  }
  auto stream = piece.order->before;
  if (stream == nullptr) stream = std::make_shared<Stream>(memory);
  if (streams_.empty() || streams_.back() != stream) streams_.push_back(stream);
  stream->copy(target, source, piece.bytes());
}

bool PieceCopies::ready() {
  std::erase_if(streams_, [](const auto& stream) { return stream->ready(); });
  return streams_.empty();
}

bool PieceCopies::finish() noexcept {
  bool well = true;
  for (const auto& stream : streams_) well &= stream->finish();
  return well;
}

bool PieceCopies::settle() noexcept {
  bool well = true;
  for (const auto& stream : streams_) well &= stream->settle();
  return well;
}

void Bucket::pack(std::byte* vector, PieceCopies& copies) const {
  for (const Piece& piece : pieces) {
    copies.copy(piece, piece.in.memory, vector, piece.in.data);
    vector += piece.bytes();
  }
}

void Bucket::unpack(const std::byte* vector, PieceCopies& copies) const {
  for (const Piece& piece : pieces) {
    copies.copy(piece, piece.out.memory, piece.out.data, vector);
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

// By a walk over all memory in the order of its addresses: what begins before an earlier one has
// ended shares memory with it.
bool apart(std::span<const Piece> pieces) {
  std::vector<Extent> extents;
  for (const Piece& piece : pieces) {
    if (piece.count == 0) continue;
    const auto* result = static_cast<const std::byte*>(piece.out.data);
    extents.push_back({result, result + piece.bytes(), true});
    if (piece.in_place()) continue;
    const auto* input = static_cast<const std::byte*>(piece.in.data);
    extents.push_back({input, input + piece.bytes(), false});
  }
  std::ranges::sort(extents, {}, &Extent::begin);
  const std::byte *results_end = nullptr, *inputs_end = nullptr;
  for (const Extent& extent : extents) {
    if (extent.begin < results_end || (extent.result && extent.begin < inputs_end)) return false;
    auto& end = extent.result ? results_end : inputs_end;
    end = std::max(end, extent.end);
  }
  return true;
}

std::uint64_t hash_of(std::span<const Piece> pieces) {
  std::uint64_t hash = mixed(1, pieces.size());
  for (const Piece& piece : pieces) {
    hash = mixed(mixed(hash, static_cast<std::uint64_t>(piece.dtype)), piece.layout);
  }
  return hash;
}

}  // namespace gradred
