// Ring, circulant and direct exchange, and one that is compressed. They serve any number of ranks;
// chunk r is finished at rank r.
#include <bit>
#include <utility>
#include <vector>

#include "schedule/combinators.h"
#include "schedule/generators.h"

namespace gradred {
namespace {

int wrap(int number, int size) { return (number % size + size) % size; }

Span chunk(int number, int size) { return work(static_cast<std::uint32_t>(wrap(number, size))); }

// `count` chunks from `first` on, around the end of the vector. Spans never wrap, so there are one
// or two.
std::vector<Span> wrapped(int first, int count, int size) {
  const int start = wrap(first, size), beyond = start + count - size;
  const auto begin = static_cast<std::uint32_t>(start);
  if (beyond <= 0) return {work(begin, static_cast<std::uint32_t>(count))};
  return {work(begin, static_cast<std::uint32_t>(count - beyond)),
          work(0, static_cast<std::uint32_t>(beyond))};
}

// halved(): `number` halved so many times, rounded up each time. halvings(): how often until 1 is
// left.
int halved(int number, int times) { return ((number - 1) >> times) + 1; }
int halvings(int number) { return std::bit_width(static_cast<unsigned>(number - 1)); }

}  // namespace

// Ring reduce-scatter: partial sums travel to the right, and each rank adds its part.
// Cost: (p-1) alpha + (p-1)/p n beta + (p-1)/p n gamma.
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009.
Schedule ring_reduce_scatter(int rank, int size) {
  Schedule schedule = blank(Kind::kReduceScatterBlock, rank, size, size, size > 1 ? 1 : 0);
  const int right = wrap(rank + 1, size), left = wrap(rank - 1, size);
  schedule.rounds = Rounds(size - 1, [=](int s) -> Round {
    const Span mine = chunk(rank - s - 2, size), inbox = scratch(0, mine.first);
    return {send(right, chunk(rank - s - 1, size)), recv(left, inbox), reduce(inbox, mine)};
  });
  return schedule;
}

// Ring allgather: finished chunks travel to the right.
// Cost: (p-1) alpha + (p-1)/p n beta.
// Source: as above.
Schedule ring_allgather(int rank, int size) {
  Schedule schedule = blank(Kind::kAllgather, rank, size, size);
  const int right = wrap(rank + 1, size), left = wrap(rank - 1, size);
  schedule.rounds = Rounds(size - 1, [=](int s) -> Round {
    return {send(right, chunk(rank - s, size)), recv(left, chunk(rank - s - 1, size))};
  });
  return schedule;
}

// Cost: 2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma.
Schedule ring(int rank, int size) {
  return then(ring_reduce_scatter(rank, size), ring_allgather(rank, size), Kind::kAllreduce);
}

// Circulant reduce-scatter: a rank holds partial sums for itself and the next `held` - 1 ranks. It
// sends the farther half to the rank `skip` further on. Halves are rounded up, so this works for
// any size.
// Cost: ceil(lg p) alpha + (p-1)/p n beta + (p-1)/p n gamma.
// Source: Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024.
Schedule circulant_reduce_scatter(int rank, int size) {
  Schedule schedule = blank(Kind::kReduceScatterBlock, rank, size, size, size / 2);
  schedule.rounds = Rounds(halvings(size), [=](int step) {
    const int held = halved(size, step), skip = halved(size, step + 1);
    Round round, reductions;
    for (const Span& given : wrapped(rank + skip, held - skip, size)) {
      round.push_back(send(wrap(rank + skip, size), given));
    }
    std::uint32_t slot = 0;
    for (const Span& mine : wrapped(rank, held - skip, size)) {
      const Span inbox = scratch(slot, mine.first, mine.chunks);
      round.push_back(recv(wrap(rank - skip, size), inbox));
      reductions.push_back(reduce(inbox, mine));
      slot += mine.chunks;
    }
    round.insert(round.end(), reductions.begin(), reductions.end());
    return round;
  });
  return schedule;
}

// Circulant allgather: the same messages backwards in time.
// Cost: ceil(lg p) alpha + (p-1)/p n beta.
// Source: as above; Bruck et al., "Efficient algorithms for all-to-all communications", TPDS 1997.
Schedule circulant_allgather(int rank, int size) {
  Schedule schedule = blank(Kind::kAllgather, rank, size, size);
  const int steps = halvings(size);
  schedule.rounds = Rounds(steps, [=](int step) {
    const int held = halved(size, steps - 1 - step), skip = halved(size, steps - step);
    Round round;
    for (const Span& mine : wrapped(rank, held - skip, size)) {
      round.push_back(send(wrap(rank - skip, size), mine));
    }
    for (const Span& taken : wrapped(rank + skip, held - skip, size)) {
      round.push_back(recv(wrap(rank + skip, size), taken));
    }
    return round;
  });
  return schedule;
}

// Cost: 2 ceil(lg p) alpha + 2(p-1)/p n beta + (p-1)/p n gamma.
Schedule circulant(int rank, int size) {
  return then(circulant_reduce_scatter(rank, size), circulant_allgather(rank, size),
              Kind::kAllreduce);
}

// Direct reduce-scatter: every rank sends each peer its chunk, all at once.
// Cost: alpha + (p-1)/p n beta + (p-1)/p n gamma (and p-1 messages in the round).
// Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication", IJHPCA 2005.
Schedule direct_reduce_scatter(int rank, int size) {
  Schedule schedule = blank(Kind::kReduceScatterBlock, rank, size, size, size - 1);
  schedule.rounds = Rounds(size > 1 ? 1 : 0, [=](int) {
    Round round, reductions;
    for (int s = 1; s < size; ++s) {  // each rank starts with a different peer
      const Span mine = chunk(rank, size);
      const Span inbox = scratch(static_cast<std::uint32_t>(s - 1), mine.first);
      round.push_back(send(wrap(rank + s, size), chunk(rank + s, size)));
      round.push_back(recv(wrap(rank - s, size), inbox));
      reductions.push_back(reduce(inbox, mine));
    }
    round.insert(round.end(), reductions.begin(), reductions.end());
    return round;
  });
  return schedule;
}

// Direct allgather: every rank sends each peer its own chunk, all at once.
// Cost: alpha + (p-1)/p n beta (and p-1 messages in the round).
// Source: as above.
Schedule direct_allgather(int rank, int size) {
  Schedule schedule = blank(Kind::kAllgather, rank, size, size);
  schedule.rounds = Rounds(size > 1 ? 1 : 0, [=](int) {
    Round round;
    for (int s = 1; s < size; ++s) {
      round.push_back(send(wrap(rank + s, size), chunk(rank, size)));
      round.push_back(recv(wrap(rank - s, size), chunk(rank - s, size)));
    }
    return round;
  });
  return schedule;
}

// Cost: 2 alpha + 2(p-1)/p n beta + (p-1)/p n gamma (and 2(p-1) messages).
Schedule direct(int rank, int size) {
  return then(direct_reduce_scatter(rank, size), direct_allgather(rank, size), Kind::kAllreduce);
}

// Direct exchange of encoded chunks. Rank r adds the others' numbers to its own and encodes the
// sums once. All ranks decode those bytes, rank r too, and so they get the same bits. Cost: 2 alpha
// + 2(p-1)/p n w beta, where w is the share that is left of a byte, and 2n of codes. Source: Wang
// et al., "ZeRO++: extremely efficient collective communication for giant model training", 2023.
Schedule compressed(Wire wire, int rank, int size) {
  Schedule schedule = blank(Kind::kAllreduce, rank, size, size);
  if (size == 1) return schedule;
  schedule.wire = wire;
  schedule.coded_slots = static_cast<std::uint32_t>(2 * size);
  const auto own = static_cast<std::uint32_t>(rank), ranks = static_cast<std::uint32_t>(size);
  Round encode, exchange, gather;
  for (std::uint32_t i = 0; i < ranks; ++i) {
    if (i == own) continue;
    const auto peer = static_cast<int>(i);
    encode.push_back(copy(work(i), coded(i, i)));
    exchange.push_back(send(peer, coded(i, i)));
    exchange.push_back(recv(peer, coded(ranks + i, own)));
    gather.push_back(send(peer, coded(own, own)));
    gather.push_back(recv(peer, coded(ranks + i, i)));
  }
  for (std::uint32_t i = 0; i < ranks; ++i) {
    if (i != own) exchange.push_back(reduce(coded(ranks + i, own), work(own)));
  }
  exchange.push_back(copy(work(own), coded(own, own)));
  for (std::uint32_t i = 0; i < ranks; ++i) {
    gather.push_back(copy(coded(i == own ? own : ranks + i, i), work(i)));
  }
  schedule.rounds = std::vector<Round>{std::move(encode), std::move(exchange), std::move(gather)};
  return schedule;
}

}  // namespace gradred
