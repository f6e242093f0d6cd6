#include "node/paths/chunks.h"

#include <algorithm>

#include "base/copy_bytes.h"
#include "node/memory/copy.h"
#include "schedule/partition.h"

namespace gradred {
namespace {

// A vector cut into chunks, of which each rank reduces one part. A part has the same position in
// every chunk, including the last, shorter one.
struct PartsOfChunks {
  std::size_t count, element, ranks;
  std::size_t part_bytes, per_chunk;  // per_chunk: elements of a chunk

  PartsOfChunks(const NodeCall& call, std::size_t chunk_bytes, std::size_t size)
      : count(call.count),
        element(call.element),
        ranks(size),
        part_bytes(chunk_bytes / size / kCacheLine * kCacheLine),
        per_chunk(part_bytes / element * size) {}

  std::size_t chunks() const { return (count + per_chunk - 1) / per_chunk; }
  std::size_t end(std::size_t c) const { return std::min(count, (c + 1) * per_chunk) * element; }

  // Part `part` of chunk `c`: its position in the chunk and in the vector, and its length.
  struct Place {
    std::size_t in_chunk, in_vector, count, bytes;
  };
  Place place(std::size_t c, std::size_t part) const {
    const Partition parts{std::min(per_chunk, count - c * per_chunk), ranks};
    const std::size_t at = parts.begin(part), length = parts.length(part);
    return {part * part_bytes, (c * per_chunk + at) * element, length, length * element};
  }
};

}  // namespace

Steps Chunks::steps(const NodeCall& call) {
  switch (call.kind) {
    case Kind::kReduceScatterBlock:
      return scatter(call);
    case Kind::kAllgather:
      return gather(call);
    case Kind::kBcast:
      return fetch(call);
    case Kind::kAlltoall:
      return swap(call);
    case Kind::kAllreduce:
      return reduces_everything(call) ? reduce(call) : exchange(call);
    default:
      return own_ways_.of(call.kind).steps(call);
  }
}

// Past the caches the second step, in which ranks fetch each other's results, is slow.
bool Chunks::reduces_everything(const NodeCall& call) const {
  return usable().fits_slots(call.bytes(), size_) ||
         (stores_.past() && usable().reduces_everything(call.bytes(), size_));
}

// Ranks of each cache group; 0: there are none, their sizes differ, or they are no neighbours. Then
// sums in the order of ranks would cross between the groups again and again.
std::size_t Chunks::group_size() const {
  const std::vector<std::uint32_t>& group_of = group_.cache_groups();
  const std::size_t groups = group_of.back() + 1;
  const std::size_t each = size_ / groups;
  if (groups == 1 || each < 2 || size_ % groups != 0) return 0;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (group_of[rank] != rank / each) return 0;
  }
  return each;
}

// Sums of floats of 16 and 8 bits have more digits while they are added than when they are passed
// on (reduce.h), so that each rank adds all inputs of its part.
bool Chunks::serves_in_groups(const NodeCall& call) const {
  const std::uint64_t dtype = SignatureFields(call.signature).dtype;
  const bool loses_digits =
      dtype < kDTypes && kDTypeInfo[dtype].kind == DTypeKind::kReal && kDTypeInfo[dtype].bytes < 4;
  return call.kind == Kind::kAllreduce && call.parts == nullptr && !loses_digits &&
         group_size() != 0;
}

std::byte* Chunks::small_chunk(std::size_t rank, std::size_t index,
                               const SmallChunks& small) const {
  return chunk(rank, 0) + index % small.depth * small.bytes;
}

// Allreduce of q cache groups of neighbours, chunk by chunk. Each group has m ranks, and place i of
// each group reduces part i of m of every chunk. Sums pass from group to group, so that they are
// added in the order of ranks, and each byte of them crosses q - 1 times. Were each rank to add all
// inputs of its part, each rank's input would cross.
//
// At time t a rank of group g
//   step 4t + 1  exports the other places' parts of chunk t to its group
//   step 4t + 2  adds its group's inputs of its own part of chunk t - 1 - g to the sum of group
//                g - 1, into its copy of the chunk, where that part is unused
//   step 4t + 3  takes the result of its own part of chunk t - 1 - q from the last group, unless it
//                is in that group, into the same place
//   step 4t + 4  takes the other parts of chunk t - 2 - q from its group.
// So chunk c is read last at time c + q + 2, by its group, and at c + q + 1 by the other groups.
// With a depth of q + 5 a rank writes it again at time c + q + 5. It first sees that the ranks of
// its place have ended step 3 of time c + q + 1. Step 4 of the time before has shown that those of
// its group have ended time c + q + 2.
Steps Chunks::reduce_in_groups(NodeCall call) {
  ++in_groups_;
  const std::size_t each = group_size(), groups = size_ / each;
  const std::size_t group = rank_ / each, place = rank_ % each, first = group * each;
  const std::size_t depth = groups + 5, last = (groups - 1) * each + place;
  const std::size_t room = options().chunk_bytes * options().depth;
  const SmallChunks small{depth, room / depth / kCacheLine * kCacheLine};
  const std::byte* const input = call.input(rank_);
  auto* const output = static_cast<std::byte*>(call.recv);
  const PartsOfChunks parts(call, small.bytes, each);
  const std::size_t chunks = parts.chunks();
  const auto is_due = [=](std::size_t time, std::size_t later) {
    return time >= later && time - later < chunks;
  };
  for (std::size_t time = 0; time < chunks + groups + 2; ++time) {
    if (is_due(time, 0)) {
      while (call.flow != nullptr && !call.flow->has_input(parts.end(time))) {
        co_await Steps::LookAgain{WaitCause::kStream};
      }
      for (std::size_t other = place; time >= depth && other < size_; other += each) {
        if (other != rank_) co_await step_of(other, 4 * (time - depth + groups + 1) + 3);
      }
      for (std::size_t distance = 1; distance < each; ++distance) {
        const auto part = parts.place(time, (place + distance) % each);
        give(call, small_chunk(rank_, time, small) + part.in_chunk, input + part.in_vector,
             part.bytes);
      }
    }
    step_done(4 * time + 1);
    if (is_due(time, 1 + group)) {
      const std::size_t c = time - 1 - group;
      const auto mine = parts.place(c, place);
      std::size_t operands = 0;
      if (group > 0) {
        co_await step_of(rank_ - each, 4 * (time - 1) + 2);
        operands_[operands++] = small_chunk(rank_ - each, c, small) + mine.in_chunk;
      }
      for (std::size_t rank = first; rank < first + each; ++rank) {
        if (rank != rank_) co_await step_of(rank, 4 * c + 1);
        operands_[operands++] =
            rank == rank_ ? input + mine.in_vector : small_chunk(rank, c, small) + mine.in_chunk;
      }
      std::byte* const sum = small_chunk(rank_, c, small) + mine.in_chunk;
      call.reduce->many(sum, operands_.data(), operands, mine.count);
      if (rank_ == last) copy_bytes(output + mine.in_vector, sum, mine.bytes);
    }
    step_done(4 * time + 2);
    if (is_due(time, 1 + groups) && rank_ != last) {
      const auto mine = parts.place(time - 1 - groups, place);
      co_await step_of(last, 4 * (time - 1) + 2);
      std::byte* const result = small_chunk(rank_, time - 1 - groups, small) + mine.in_chunk;
      copy_bytes(result, small_chunk(last, time - 1 - groups, small) + mine.in_chunk, mine.bytes);
      copy_bytes(output + mine.in_vector, result, mine.bytes);
    }
    step_done(4 * time + 3);
    for (std::size_t distance = 1; is_due(time, 2 + groups) && distance < each; ++distance) {
      const std::size_t other = (place + distance) % each, c = time - 2 - groups;
      co_await step_of(first + other, 4 * (time - 1) + 3);
      const auto part = parts.place(c, other);
      take(call, output + part.in_vector, small_chunk(first + other, c, small) + part.in_chunk,
           part.bytes);
    }
    if (call.flow != nullptr && is_due(time, 2 + groups)) {
      call.flow->has_result(parts.end(time - 2 - groups));
    }
    step_done(4 * time + 4);
  }
  steps_end(4 * (chunks + groups + 2));
  if (threads_for(call) > 1) Helpers::rest();
}

// Keeps two chunks in flight: calls export_chunk(c) while peers still use chunk c - 1, then
// use_chunk(c - 1).
//
// At time t a rank exports chunk t (step t + 1), then uses the peers' chunk t - 1. The export
// overwrites chunk t - depth, which a peer has finished with once it has done step t - depth + 3.
// At time t - 1 this rank saw the peer's step t - 1, so a depth of 4 is enough.
template <class Export, class Use>
Steps Chunks::pipeline(Pieces pieces, Flow* flow, Export export_chunk, Use use_chunk) {
  const std::size_t chunks = pieces.count();
  for (std::size_t time = 0; time <= chunks; ++time) {
    if (time < chunks) {
      while (flow != nullptr && !flow->has_input(pieces.end(time))) {
        co_await Steps::LookAgain{WaitCause::kStream};
      }
      export_chunk(time);
      step_done(time + 1);
    }
    if (time == 0) continue;
    for (std::size_t distance = 1; distance < size_; ++distance) {
      co_await step_of(peer_at(distance), time);
    }
    use_chunk(time - 1);
    if (flow != nullptr) flow->has_result(pieces.end(time - 1));
  }
  steps_end(chunks);
  if (group_.threads() > 1) Helpers::rest();
}

// Allreduce in which every rank reduces everything. While a peer reads one chunk, the rank writes
// the next.
Steps Chunks::reduce(const NodeCall& call) {
  const std::size_t piece = usable().piece_bytes / call.element * call.element;
  const Pieces pieces{call.bytes(), piece};
  const std::byte* const input = call.input(rank_);
  place_chunks(std::min(piece, pieces.bytes), pieces.count());
  return pipeline(
      pieces, call.flow,
      [=, this](std::size_t c) {
        give(call, chunk(rank_, c), input + pieces.begin(c), pieces.length(c));
      },
      [=, this](std::size_t c) {
        for (std::size_t rank = 0; rank < size_; ++rank) operands_[rank] = chunk(rank, c);
        operands_[rank_] = input + pieces.begin(c);
        combine_shared(call, static_cast<std::byte*>(call.recv) + pieces.begin(c),
                       pieces.length(c) / call.element);
      });
}

// A chunk holds one piece of every rank's block or part. The owner of the block reduces that piece.
Steps Chunks::scatter(const NodeCall& call) {
  std::size_t owners = 0;  // ranks with a non-empty part
  for (std::size_t rank = 0; rank < size_; ++rank) owners += call.part_bytes(rank) > 0 ? 1 : 0;
  const std::size_t room = usable().chunk_bytes / std::max<std::size_t>(owners, 1);
  const std::size_t longest = call.longest_part(size_);
  const std::size_t per_rank =
      std::min(room / call.element * call.element, std::max(longest, call.element));
  const std::byte* const input = call.input(rank_);
  auto* const output = static_cast<std::byte*>(call.recv);
  const auto place = [=](std::size_t owner) {  // offset of the owner's piece in a chunk
    std::size_t before = 0;
    for (std::size_t rank = 0; rank < owner; ++rank) before += call.part_bytes(rank) > 0 ? 1 : 0;
    return before * per_rank;
  };
  const std::size_t own_place = place(rank_);
  const Pieces pieces{longest, per_rank};
  place_chunks(owners * per_rank, pieces.count());
  return pipeline(
      pieces, nullptr,
      [=, this](std::size_t c) {
        for (std::size_t distance = 1; distance < size_; ++distance) {
          const std::size_t peer = peer_at(distance);
          const Pieces theirs{call.part_bytes(peer), per_rank};
          if (theirs.length(c) == 0) continue;
          std::byte* const target = chunk(rank_, c) + place(peer);
          call.for_runs(call.part_begin(peer) + theirs.begin(c), theirs.length(c),
                        [&](std::size_t at, std::size_t before, std::size_t bytes) {
                          stores_.give(target + before, input + at, bytes);
                        });
        }
      },
      [=, this](std::size_t c) {
        const Pieces own{call.part_bytes(rank_), per_rank};
        if (own.length(c) == 0) return;
        call.for_runs(call.part_begin(rank_) + own.begin(c), own.length(c),
                      [&](std::size_t at, std::size_t before, std::size_t bytes) {
                        for (std::size_t rank = 0; rank < size_; ++rank) {
                          operands_[rank] = chunk(rank, c) + own_place + before;
                        }
                        operands_[rank_] = input + at;
                        combine_shared(call, output + (call.parts != nullptr ? at : own.begin(c)),
                                       bytes / call.element);
                      });
      });
}

Steps Chunks::gather(const NodeCall& call) {
  const std::size_t piece = usable().piece_bytes;
  const std::byte* const input = call.input(rank_);
  auto* const output = static_cast<std::byte*>(call.recv);
  const bool in_place = call.send == kInPlace;
  const std::size_t whole = call.bytes() * (call.parts != nullptr ? 1 : size_);
  const Copy put = copy_of_results(options().streams(whole));
  const Pieces pieces{call.longest_part(size_), piece};
  place_chunks(std::min(piece, pieces.bytes), pieces.count());
  return pipeline(
      pieces, nullptr,
      [=, this](std::size_t c) {
        const Pieces own{call.part_bytes(rank_), piece};
        if (call.order == nullptr) {
          if (own.length(c) > 0) stores_.give(chunk(rank_, c), input + own.begin(c), own.length(c));
          return;
        }
        call.for_runs(call.part_begin(rank_) + own.begin(c), own.length(c),
                      [&](std::size_t at, std::size_t before, std::size_t bytes) {
                        stores_.give(chunk(rank_, c) + before, output + at, bytes);
                      });
      },
      [=, this](std::size_t c) {
        const Pieces own{call.part_bytes(rank_), piece};
        if (!in_place && own.length(c) > 0) {  // while peers read their pieces
          put(output + call.part_begin(rank_) + own.begin(c), input + own.begin(c), own.length(c));
        }
        for (std::size_t distance = 1; distance < size_; ++distance) {
          const std::size_t peer = peer_at(distance);
          const Pieces theirs{call.part_bytes(peer), piece};
          if (theirs.length(c) == 0) continue;
          call.for_runs(call.part_begin(peer) + theirs.begin(c), theirs.length(c),
                        [&](std::size_t at, std::size_t before, std::size_t bytes) {
                          put(output + at, chunk(peer, c) + before, bytes);
                        });
        }
      });
}

// Alltoall. A chunk holds one piece for each peer, ordered by the peers' distances.
Steps Chunks::swap(const NodeCall& call) {
  const std::size_t peers = std::max<std::size_t>(size_ - 1, 1);
  const std::byte* const input = call.input(rank_);
  auto* const output = static_cast<std::byte*>(call.recv);
  std::size_t longest = 0;
  for (std::size_t from = 0; from < size_; ++from) {
    for (std::size_t distance = 1; distance < size_; ++distance) {
      longest = std::max(longest, call.split_bytes(from, (from + distance) % size_, size_));
    }
  }
  const std::size_t piece =
      piece_of(usable().chunk_bytes / peers, std::max<std::size_t>(longest, 1));
  const Pieces pieces{longest, piece};
  place_chunks(peers * piece, pieces.count());
  const std::size_t own_bytes = call.split_bytes(rank_, rank_, size_), turns = pieces.count();
  const Pieces own{own_bytes, turns > 0 ? (own_bytes + turns - 1) / turns : own_bytes};
  const auto copy_own = [=, this](std::size_t c) {  // while peers read their pieces
    if (own_bytes == 0 || own.length(c) == 0) return;
    copy_bytes(output + call.got_before(rank_, rank_, size_) + own.begin(c),
               input + call.given_before(rank_, rank_, size_) + own.begin(c), own.length(c));
  };
  if (turns == 0) copy_own(0);
  const Copy put = copy_of_results(options().streams(call.got_before(rank_, size_, size_)));
  return pipeline(
      pieces, nullptr,
      [=, this](std::size_t c) {
        for (std::size_t distance = 1; distance < size_; ++distance) {
          const std::size_t peer = peer_at(distance);
          const Pieces theirs{call.split_bytes(rank_, peer, size_), piece};
          if (theirs.length(c) == 0) continue;
          stores_.give(chunk(rank_, c) + (distance - 1) * piece,
                       input + call.given_before(rank_, peer, size_) + theirs.begin(c),
                       theirs.length(c));
        }
      },
      [=, this](std::size_t c) {
        copy_own(c);
        for (std::size_t distance = 1; distance < size_; ++distance) {
          const std::size_t peer = peer_at(distance);
          const Pieces theirs{call.split_bytes(peer, rank_, size_), piece};
          if (theirs.length(c) == 0) continue;
          std::byte* const target = output + call.got_before(rank_, peer, size_) + theirs.begin(c);
          const std::byte* const source = chunk(peer, c) + (size_ - distance - 1) * piece;
          put(target, source, theirs.length(c));
        }
      });
}

// Broadcast. The root publishes step c + 1 when chunk c can be read, a reader when it has read
// chunk c.
Steps Chunks::fetch(NodeCall call) {
  const auto root = static_cast<std::size_t>(call.root);
  auto* const data = static_cast<std::byte*>(call.recv);
  const Pieces pieces{call.bytes(), usable().piece_bytes};
  const Copy put = copy_of_results(options().streams(call.bytes()));
  place_chunks(std::min(pieces.piece, pieces.bytes), pieces.count());
  for (std::size_t c = 0; c < pieces.count(); ++c) {
    if (rank_ == root) {
      while (call.flow != nullptr && !call.flow->has_input(pieces.end(c))) {
        co_await Steps::LookAgain{WaitCause::kStream};
      }
      for (std::size_t distance = 1; c >= options().depth && distance < size_; ++distance) {
        co_await step_of(peer_at(distance), c - options().depth + 1);
      }
      stores_.give(chunk(rank_, c), data + pieces.begin(c), pieces.length(c));
    } else {
      co_await step_of(root, c + 1);
      put(data + pieces.begin(c), chunk(root, c), pieces.length(c));
      if (call.flow != nullptr) call.flow->has_result(pieces.end(c));
    }
    step_done(c + 1);
  }
  steps_end(pieces.count());
}

// combine(), by all threads of this rank.
void Chunks::combine_shared(const NodeCall& call, std::byte* result, std::size_t count) {
  share(call, threads_for(call), count, [&](Slice slice, const void** operands, std::size_t) {
    combine(call, result + slice.begin * call.element, operands, slice.count);
  });
}

// Writes what peers read, by all threads of this rank.
void Chunks::give(const NodeCall& call, std::byte* target, const std::byte* source,
                  std::size_t bytes) {
  const std::size_t threads = threads_for(call);
  if (threads == 1) return stores_.give(target, source, bytes);
  Helpers::share(threads, [&](std::size_t index) {
    const auto [begin, length] = slice_of(bytes, threads, index);
    (stores_.past() ? copy_streaming : copy_out)(target + begin, source + begin, length);
  });
}

// Reads a result of a peer, by all threads of this rank.
void Chunks::take(const NodeCall& call, std::byte* target, const std::byte* source,
                  std::size_t bytes) {
  const std::size_t threads = threads_for(call);
  const Copy put = copy_of_results(streams(call));
  const auto copy = [&](std::size_t index) {
    const auto [begin, length] = slice_of(bytes, threads, index);
    put(target + begin, source + begin, length);
  };
  threads == 1 ? copy(0) : Helpers::share(threads, copy);
}

// Reduces the operands into memory that peers read and into the result, by all threads of this
// rank. Each piece is still in the first-level cache when it is copied.
void Chunks::reduce_twice(const NodeCall& call, std::byte* shared, std::byte* result,
                          std::size_t count) {
  constexpr std::size_t kPiece = 16 << 10;
  const bool past = stores_.past();
  const std::size_t threads = threads_for(call), most = kPiece / call.element;
  if (past && streams(call)) scratch_.resize(threads * kPiece);
  share(call, threads, count, [&](Slice slice, const void** operands, std::size_t index) {
    for (std::size_t done = 0; done < slice.count; done += most) {
      const std::size_t length = std::min(most, slice.count - done);
      const std::size_t at = (slice.begin + done) * call.element, bytes = length * call.element;
      std::byte* const to_peers = shared + at;
      std::byte* sum = result + at;
      if (streams(call)) sum = past ? scratch_.data() + index * kPiece : to_peers;
      combine(call, sum, operands, length);
      if (sum != to_peers) (past ? copy_streaming : copy_out)(to_peers, sum, bytes);
      if (streams(call)) copy_streaming(result + at, sum, bytes);
      for (std::size_t rank = 0; rank < size_; ++rank) {
        operands[rank] = static_cast<const std::byte*>(operands[rank]) + bytes;
      }
    }
  });
}

// Allreduce as reduce-scatter and allgather, chunk by chunk. Rank r reduces part r of each chunk.
//
// At time t a rank exports the peers' parts of chunk t (step 2t + 1). It reduces its own part of
// chunk t - 1 into its copy of the chunk, where that part is unused (step 2t + 2). It then fetches
// the peers' results of chunk t - 2. It reduces after all peers have done step 2t - 1, and fetches
// after they have done step 2t.
//
// Both writes at time t, the export and the result, overwrite copies of the chunk of `depth` times
// ago. Peers have read the old export when they have done step 2(t - depth) + 4, and this rank saw
// their step 2t - 2 at time t - 1. Peers have fetched the old result before they do step
// 2(t + 2 - depth) + 1, and this rank saw their step 2t - 1 just before it reduced. So both writes
// are safe if the depth is at least 3.
Steps Chunks::exchange(NodeCall call) {
  const std::byte* const input = call.input(rank_);
  auto* const output = static_cast<std::byte*>(call.recv);
  const std::size_t part = Partition{call.count, size_}.length(0) * call.element;
  const std::size_t chunk_bytes = size_ * piece_of(usable().chunk_bytes / size_, part);
  const PartsOfChunks parts(call, chunk_bytes, size_);
  const std::size_t chunks = parts.chunks();
  place_chunks(chunk_bytes, chunks);
  for (std::size_t time = 0; time <= chunks + 1; ++time) {
    if (time < chunks) {
      while (call.flow != nullptr && !call.flow->has_input(parts.end(time))) {
        co_await Steps::LookAgain{WaitCause::kStream};
      }
      for (std::size_t distance = 1; distance < size_; ++distance) {
        const auto part = parts.place(time, peer_at(distance));
        give(call, chunk(rank_, time) + part.in_chunk, input + part.in_vector, part.bytes);
      }
      step_done(2 * time + 1);
    }
    if (time >= 1 && time <= chunks) {
      for (std::size_t distance = 1; distance < size_; ++distance) {
        co_await step_of(peer_at(distance), 2 * time - 1);
      }
      const auto mine = parts.place(time - 1, rank_);
      for (std::size_t rank = 0; rank < size_; ++rank) {
        operands_[rank] = chunk(rank, time - 1) + mine.in_chunk;
      }
      operands_[rank_] = input + mine.in_vector;
      reduce_twice(call, chunk(rank_, time - 1) + mine.in_chunk, output + mine.in_vector,
                   mine.count);
      step_done(2 * time + 2);
    }
    for (std::size_t distance = 1; time >= 2 && distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance);
      co_await step_of(peer, 2 * time);
      const auto part = parts.place(time - 2, peer);
      take(call, output + part.in_vector, chunk(peer, time - 2) + part.in_chunk, part.bytes);
    }
    if (call.flow != nullptr && time >= 2) call.flow->has_result(parts.end(time - 2));
  }
  steps_end(2 * chunks + 2);
  if (threads_for(call) > 1) Helpers::rest();
}

}  // namespace gradred
