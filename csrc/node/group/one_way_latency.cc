// Measures how long a flag in shared memory takes from one rank to another.
#include "base/clock.h"
#include "node/group/group.h"

namespace gradred {

double one_way_latency_ns(NodeGroup& group, unsigned turns, Poll* poll) {
  double nanoseconds = 0;
  const Signature signature = make_signature(Kind::kAllreduce, Op::kMax, DType::kUInt8, turns);
  group.operate(poll, [&] {
    group.announce(signature, nullptr, 0);
    group.await_announcements(signature);
    if (group.rank() > 1) return;
    const SharedPart& part = group.part();
    const bool first = group.rank() == 0;
    std::atomic<std::uint64_t>& mine = first ? part.header().ping : part.header().pong;
    std::atomic<std::uint64_t>& theirs = first ? part.header().pong : part.header().ping;
    Bell& own_bell = part.state(first ? 0 : 1).bell;
    Bell& their_bell = part.state(first ? 1 : 0).bell;
    Waiter& waiter = group.waiter();
    const std::uint64_t before = mine.load(std::memory_order_relaxed);
    const std::uint64_t start = now_ns();
    for (std::uint64_t turn = 1; turn <= turns; ++turn) {
      if (first) waiter.publish(mine, before + turn, own_bell);
      waiter.wait({&theirs, before + turn, &their_bell, waiter.expected()});
      if (!first) waiter.publish(mine, before + turn, own_bell);
    }
    nanoseconds = static_cast<double>(now_ns() - start) / (2.0 * turns);
  });
  return group.rank() > 1 ? 0 : nanoseconds;
}

}  // namespace gradred
