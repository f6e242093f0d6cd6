#include "base/clock.h"
#include "node/group.h"

namespace gradred {

double NodeGroup::one_way_latency_ns(unsigned turns, Poll* poll) {
  double nanoseconds = 0;
  const Signature signature = make_signature(Kind::kAllreduce, Op::kMax, DType::kUInt8, turns);
  operate(poll, [&] {
    announce(signature, nullptr, 0);
    await_announcements(signature);
    if (rank_ > 1) return;
    std::atomic<std::uint64_t>& mine = rank_ == 0 ? header_.ping : header_.pong;
    std::atomic<std::uint64_t>& theirs = rank_ == 0 ? header_.pong : header_.ping;
    const std::uint64_t first = mine.load(std::memory_order_relaxed);
    const std::uint64_t start = now_ns();
    for (std::uint64_t turn = 1; turn <= turns; ++turn) {
      if (rank_ == 0) waiter_.publish(mine, first + turn, states_[rank_].bell);
      waiter_.wait({&theirs, first + turn, &states_[1 - rank_].bell, waiter_.expected()});
      if (rank_ == 1) waiter_.publish(mine, first + turn, states_[rank_].bell);
    }
    nanoseconds = static_cast<double>(now_ns() - start) / (2.0 * turns);
  });
  return rank_ > 1 ? 0 : nanoseconds;
}

}  // namespace gradred
