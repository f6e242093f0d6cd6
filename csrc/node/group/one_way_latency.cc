// Measures how long a flag in shared memory takes from one rank to another.
#include "node/group/cache_groups.h"
#include "node/group/group.h"

namespace gradred {

double one_way_latency_ns(NodeGroup& group, unsigned turns, Poll* poll) {
  double nanoseconds = 0;
  const Signature signature = make_signature(Kind::kAllreduce, Op::kMax, DType::kUInt8, turns);
  group.operate(poll, [&] {
    group.announce(signature, nullptr, 0);
    group.await_announcements(signature);
    const std::size_t peer = group.rank() == 0 ? 1 : 0;
    std::atomic<std::uint64_t>& flag =
        group.part().state(static_cast<std::size_t>(group.rank())).flag;
    const std::uint64_t from = flag.load(std::memory_order_relaxed);
    if (group.rank() < 2) {
      nanoseconds = flag_latency_ns(group, peer, from, turns);
    } else {
      flag.store(from + turns, std::memory_order_relaxed);
    }
  });
  return group.rank() == 0 ? nanoseconds : 0;
}

}  // namespace gradred
