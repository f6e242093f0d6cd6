// Allreduce within one host: four paths by size. In all of them each element is folded in order of
// rank, on one rank or on every rank alike, so all ranks get the same bits, whatever the path.
#include <algorithm>
#include <cstring>

#include "node/copy.h"
#include "node/group.h"
#include "schedule/partition.h"

namespace gradred {

void NodeGroup::allreduce(const AllreduceArgs& args) {
  const std::size_t bytes = args.count * args.element;
  operate(args.poll, [&] {
    if (starts(bytes)) {
      announce_input(args);
      await_announcements(args.signature);
      reduce_inputs(args);
    } else if (options_.reduces_everything(bytes, size_)) {
      reduce_chunks(args);
    } else {
      exchange_chunks(args);
    }
  });
}

bool NodeGroup::starts(std::size_t bytes) const {
  return fits_announcement(bytes) || fits_slots(bytes);
}

bool NodeGroup::start_allreduce(const AllreduceArgs& args) {
  bool started = false;
  guarded([&] {
    if (catch_up_ && !all_announced()) return;
    enter(args.poll);
    announce_input(args);
    started = true;
  });
  return started;
}

bool NodeGroup::finish_allreduce(const AllreduceArgs& args) {
  bool finished = false;
  guarded([&] {
    if (!all_announced()) {  // else nothing that a peer may do since matters
      glance();
      return check_now_and_then();
    }
    await_announcements(args.signature);
    reduce_inputs(args);
    finish();
    finished = true;
  });
  return finished;
}

// target = operands_[0] op ... op operands_[size - 1]
void NodeGroup::combine(const AllreduceArgs& args, void* target, std::size_t count) {
  if (size_ == 2) {
    args.reduce->pair(target, operands_[0], operands_[1], count);
  } else {
    args.reduce->many(target, operands_.data(), size_, count);
  }
}

// Up to 48 bytes travel in the cache line of the announcement, one transfer each way; longer inputs
// lie in the slots when it appears.
void NodeGroup::announce_input(const AllreduceArgs& args) {
  const std::byte* input = input_of(args);
  const std::size_t bytes = args.count * args.element;
  if (fits_announcement(bytes)) return announce(args.signature, input, bytes);
  copy_out(slot(rank_), input, bytes);
  announce(args.signature, nullptr, 0);
}

// Every rank reduces everything.
void NodeGroup::reduce_inputs(const AllreduceArgs& args) {
  if (args.count == 0) return;
  const bool in_line = fits_announcement(args.count * args.element);
  for (std::size_t rank = 0; rank < size_; ++rank) {
    operands_[rank] = in_line ? announcement(rank).data : slot(rank);
  }
  operands_[rank_] = input_of(args);
  combine(args, args.recv, args.count);
}

// The same in a pipeline of chunks: while a peer reads one, the next is written.
void NodeGroup::reduce_chunks(const AllreduceArgs& args) {
  const std::byte* input = input_of(args);
  auto* output = static_cast<std::byte*>(args.recv);
  announce(args.signature, nullptr, 0);
  await_announcements(args.signature);
  const std::size_t per_chunk = options_.piece_bytes / args.element;
  const auto length = [&](std::size_t c) {
    return std::min(per_chunk, args.count - c * per_chunk);
  };
  const auto begin = [&](std::size_t c) { return c * per_chunk * args.element; };
  pipeline(
      (args.count + per_chunk - 1) / per_chunk,
      [&](std::size_t c) { copy_out(chunk(rank_, c), input + begin(c), length(c) * args.element); },
      [&](std::size_t c) {
        for (std::size_t rank = 0; rank < size_; ++rank) operands_[rank] = chunk(rank, c);
        operands_[rank_] = input + begin(c);
        combine(args, output + begin(c), length(c));
      });
}

// Reduce-scatter and allgather, chunk by chunk; of each chunk, rank r reduces part r.
//
// At time t a rank exports the peers' parts of chunk t (step 2t + 1), reduces its part of chunk t -
// 1 into its own copy of the chunk, where that part is unused (step 2t + 2), and fetches the peers'
// results of chunk t - 2. Before it reduces it has seen all peers at step 2t - 1, before it fetches
// at 2t.
//
// A part has the same place in every chunk copy, also in the last, shorter one.
// Both overwrite chunk copies of `depth` times ago. The export at t: peers have read those in step
// 2(t - depth) + 4; at t - 1 we saw 2t - 2. The result at t: peers have fetched its predecessor
// before step 2(t + 2 - depth) + 1; just before we saw 2t - 1. Both hold from a depth of 3 on.
void NodeGroup::exchange_chunks(const AllreduceArgs& args) {
  const std::byte* input = input_of(args);
  auto* output = static_cast<std::byte*>(args.recv);
  const bool streams = args.count * args.element >= options_.streaming_bytes;
  announce(args.signature, nullptr, 0);
  await_announcements(args.signature);

  const std::size_t part_bytes = options_.chunk_bytes / size_ / kCacheLine * kCacheLine;
  const std::size_t per_chunk = part_bytes / args.element * size_;
  const std::size_t chunks = (args.count + per_chunk - 1) / per_chunk;
  // Part `part` of chunk `c`: where it lies in the chunk and in the vector, and its length.
  struct Place {
    std::size_t in_chunk, in_vector, count, bytes;
  };
  const auto place = [&](std::size_t c, std::size_t part) -> Place {
    const Partition parts{std::min(per_chunk, args.count - c * per_chunk), size_};
    const std::size_t at = parts.begin(part), count = parts.length(part);
    return {part * part_bytes, (c * per_chunk + at) * args.element, count, count * args.element};
  };

  for (std::size_t time = 0; time <= chunks + 1; ++time) {
    if (time < chunks) {
      for (std::size_t distance = 1; distance < size_; ++distance) {
        const Place part = place(time, (rank_ + distance) % size_);
        copy_out(chunk(rank_, time) + part.in_chunk, input + part.in_vector, part.bytes);
      }
      step_done(2 * time + 1);
    }
    if (time >= 1 && time <= chunks) {
      const Place mine = place(time - 1, rank_);
      await_step(2 * time - 1);
      for (std::size_t rank = 0; rank < size_; ++rank) {
        operands_[rank] = chunk(rank, time - 1) + mine.in_chunk;
      }
      operands_[rank_] = input + mine.in_vector;
      std::byte* const shared = chunk(rank_, time - 1) + mine.in_chunk;
      if (streams) {
        combine(args, shared, mine.count);
        copy_streaming(output + mine.in_vector, shared, mine.bytes);
      } else {
        combine(args, output + mine.in_vector, mine.count);
        copy_out(shared, output + mine.in_vector, mine.bytes);
      }
      step_done(2 * time + 2);
    }
    if (time >= 2) {
      for (std::size_t distance = 1; distance < size_; ++distance) {
        const std::size_t peer = (rank_ + distance) % size_;
        const Place part = place(time - 2, peer);
        await_step(peer, 2 * time);
        const std::byte* result = chunk(peer, time - 2) + part.in_chunk;
        if (streams) {
          copy_streaming(output + part.in_vector, result, part.bytes);
        } else {
          std::memcpy(output + part.in_vector, result, part.bytes);
        }
      }
    }
  }
  steps_end(2 * chunks + 2);
}

}  // namespace gradred
