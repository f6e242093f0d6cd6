// Gathers and scatters in the memory of a host.
#include <algorithm>

#include "base/copy_bytes.h"
#include "node/memory/copy.h"
#include "node/paths/kind_way.h"

namespace gradred {
namespace {

class Gathers final : public KindWay {
 public:
  using KindWay::KindWay;

  void take(const NodeCall& call, DataPath path) override {
    const std::size_t block = call.bytes(), root = root_of(call);
    auto* const result = static_cast<std::byte*>(call.recv);
    if (call.kind == Kind::kScatter) {
      const std::byte* const all = rank_ == root ? call.input(rank_) : given(root, path);
      copy_bytes(result, all + rank_ * block, block);
    } else if (rank_ == root) {
      for (std::size_t rank = 0; rank < size_; ++rank) {
        copy(result + rank * block, rank == rank_ ? call.input(rank_) : given(rank, path), block);
      }
    }
  }

  Steps steps(const NodeCall& call) override {
    if (call.kind == Kind::kGather) return gather(call);
    return scatter(call);
  }

 private:
  Steps gather(NodeCall call);
  Steps scatter(NodeCall call);

  static std::size_t root_of(const NodeCall& call) { return static_cast<std::size_t>(call.root); }
  static void copy(std::byte* target, const std::byte* source, std::size_t bytes) {
    if (target != source) copy_bytes(target, source, bytes);
  }
};

// Step c + 1 of the root: it has read piece c of all ranks. Step c + 1 of another rank: its piece c
// can be read. That overwrites the piece of `depth` pieces before, once the root has read it.
Steps Gathers::gather(NodeCall call) {
  const std::size_t root = root_of(call), block = call.bytes(), depth = options().depth;
  const std::size_t piece = usable().piece_bytes, pieces = (block + piece - 1) / piece;
  const std::byte* const input = call.input(rank_);
  auto* const result = static_cast<std::byte*>(call.recv);
  const Copy put = copy_of_results(options().streams(size_ * block));
  place_chunks(std::min(piece, block), pieces);
  for (std::size_t c = 0; c < pieces; ++c) {
    const std::size_t begin = c * piece, bytes = std::min(piece, block - begin);
    if (rank_ == root) {
      std::byte* const own = result + rank_ * block;
      if (own != input) put(own + begin, input + begin, bytes);
      for (std::size_t distance = 1; distance < size_; ++distance) {
        const std::size_t peer = peer_at(distance);
        co_await step_of(peer, c + 1);
        put(result + peer * block + begin, chunk(peer, c), bytes);
      }
    } else {
      if (c >= depth) co_await step_of(root, c - depth + 1);
      stores_.give(chunk(rank_, c), input + begin, bytes);
    }
    step_done(c + 1);
  }
  steps_end(pieces);
}

// A chunk of the root holds a piece for each rank. Step c + 1 of the root: piece c can be read.
// Step c + 1 of another rank: it has read its own.
Steps Gathers::scatter(NodeCall call) {
  const std::size_t root = root_of(call), block = call.bytes(), depth = options().depth;
  const std::size_t piece = piece_of(usable().chunk_bytes / size_, block);
  const std::size_t pieces = (block + piece - 1) / piece;
  const std::byte* const input = call.input(rank_);
  auto* const result = static_cast<std::byte*>(call.recv);
  const Copy put = copy_of_results(options().streams(block));
  place_chunks(size_ * piece, pieces);
  for (std::size_t c = 0; c < pieces; ++c) {
    const std::size_t begin = c * piece, bytes = std::min(piece, block - begin);
    if (rank_ == root) {
      for (std::size_t distance = 1; c >= depth && distance < size_; ++distance) {
        co_await step_of(peer_at(distance), c - depth + 1);
      }
      for (std::size_t distance = 1; distance < size_; ++distance) {
        const std::size_t peer = peer_at(distance);
        stores_.give(chunk(rank_, c) + peer * piece, input + peer * block + begin, bytes);
      }
      put(result + begin, input + rank_ * block + begin, bytes);
    } else {
      co_await step_of(root, c + 1);
      put(result + begin, chunk(root, c) + rank_ * piece, bytes);
    }
    step_done(c + 1);
  }
  steps_end(pieces);
}

}  // namespace

std::unique_ptr<KindWay> make_gathers(NodeAgreement& group, PeerStores& stores) {
  return std::make_unique<Gathers>(group, stores);
}

}  // namespace gradred
