// Reduce-scatter, allgather and broadcast within one host: a path for what fits into the
// announcements, and a pipeline of chunks.
#include <algorithm>
#include <cstring>

#include "node/copy.h"
#include "node/group.h"

namespace gradred {
namespace {

// A run of bytes cut into equal pieces, the last one shorter.
struct Pieces {
  std::size_t bytes, piece;

  std::size_t count() const { return (bytes + piece - 1) / piece; }
  std::size_t begin(std::size_t index) const { return index * piece; }
  std::size_t length(std::size_t index) const { return std::min(piece, bytes - begin(index)); }
};

}  // namespace

// A chunk holds one piece of every rank's block; the owner of the block reduces that piece.
void NodeGroup::reduce_scatter_block(const BlockArgs& args) {
  const std::size_t block = args.count * args.element;
  const std::byte* input = input_of(args);
  auto* output = static_cast<std::byte*>(args.recv);
  operate(args.poll, [&] {
    const bool fits = size_ * block <= Announcement::kDataBytes;
    announce(args.signature, input, fits ? size_ * block : 0);
    await_announcements(args.signature);
    if (fits) {
      if (block == 0) return;
      for (std::size_t rank = 0; rank < size_; ++rank) {
        operands_[rank] = announcement(rank).data + rank_ * block;
      }
      combine(args, output, args.count);
      return;
    }
    const std::size_t per_rank = options_.chunk_bytes / size_ / args.element * args.element;
    const Pieces pieces{block, per_rank};
    pipeline(
        pieces.count(),
        [&](std::size_t c) {
          for (std::size_t distance = 1; distance < size_; ++distance) {
            const std::size_t peer = (rank_ + distance) % size_;
            copy_out(chunk(rank_, c) + peer * per_rank, input + peer * block + pieces.begin(c),
                     pieces.length(c));
          }
        },
        [&](std::size_t c) {
          for (std::size_t rank = 0; rank < size_; ++rank) {
            operands_[rank] = chunk(rank, c) + rank_ * per_rank;
          }
          operands_[rank_] = input + rank_ * block + pieces.begin(c);
          combine(args, output + pieces.begin(c), pieces.length(c) / args.element);
        });
  });
}

void NodeGroup::allgather(const BlockArgs& args) {
  const std::size_t block = args.count * args.element;
  auto* output = static_cast<std::byte*>(args.recv);
  const std::byte* input =
      args.send != kInPlace ? static_cast<const std::byte*>(args.send) : output + rank_ * block;
  operate(args.poll, [&] {
    const bool fits = block <= Announcement::kDataBytes;
    announce(args.signature, input, fits ? block : 0);
    await_announcements(args.signature);
    if (args.send != kInPlace && block > 0) std::memcpy(output + rank_ * block, input, block);
    if (fits) {
      for (std::size_t rank = 0; rank < size_; ++rank) {
        if (rank != rank_) copy_few(output + rank * block, announcement(rank).data, block);
      }
      return;
    }
    const Pieces pieces{block, options_.chunk_bytes};
    pipeline(
        pieces.count(),
        [&](std::size_t c) {
          copy_out(chunk(rank_, c), input + pieces.begin(c), pieces.length(c));
        },
        [&](std::size_t c) {
          for (std::size_t distance = 1; distance < size_; ++distance) {
            const std::size_t peer = (rank_ + distance) % size_;
            std::memcpy(output + peer * block + pieces.begin(c), chunk(peer, c), pieces.length(c));
          }
        });
  });
}

void NodeGroup::bcast(const BcastArgs& args) {
  const bool gives = args.root == rank();
  const bool fits = args.bytes <= Announcement::kDataBytes;
  operate(args.poll, [&] {
    announce(args.signature, args.data, gives && fits ? args.bytes : 0);
    await_announcements(args.signature);
    if (!fits) {
      fetch_from_root(args);
    } else if (!gives) {
      const auto& root = announcement(static_cast<std::size_t>(args.root));
      copy_few(static_cast<std::byte*>(args.data), root.data, args.bytes);
    }
  });
}

// The root's step c + 1: chunk c can be read. A reader's: it has read chunk c.
void NodeGroup::fetch_from_root(const BcastArgs& args) {
  const auto root = static_cast<std::size_t>(args.root);
  auto* data = static_cast<std::byte*>(args.data);
  const Pieces pieces{args.bytes, options_.chunk_bytes};
  for (std::size_t c = 0; c < pieces.count(); ++c) {
    if (rank_ == root) {
      if (c >= options_.depth) await_step(c - options_.depth + 1);
      copy_out(chunk(rank_, c), data + pieces.begin(c), pieces.length(c));
    } else {
      await_step(root, c + 1);
      std::memcpy(data + pieces.begin(c), chunk(root, c), pieces.length(c));
    }
    step_done(c + 1);
  }
  steps_end(pieces.count());
}

}  // namespace gradred
