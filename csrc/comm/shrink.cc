// Makes a communicator of the ranks that live, with shared memory and nothing else.
#include "base/clock.h"
#include "base/errors.h"
#include "comm/communicator.h"
#include "engine/driving.h"
#include "liveness/supervisor.h"
#include "node/group/shrinking.h"

namespace gradred {
namespace {

// What a rank does while it waits for the other ranks that live. Once a failure is known it makes
// no MPI call: the MPI may wait for failed processes.
class ShrinkPoll final : public Poll {
 public:
  ShrinkPoll(const MessageParts& parts, const Shrinking& shrinking, WaitHook& hook)
      : parts_(parts), shrinking_(shrinking), hook_(hook) {}

  void poll() override {
    hook_.waiting();
    if (!process_poisoned) drive(parts_.operation_log);
    watchdog_.check(*this);
  }
  WaitRecord record() const { return shrinking_.wait_record(); }
  std::string waiter() const { return parts_.liveness.own_name(); }
  std::string waits_for() const { return shrinking_.missing(); }
  bool reports() const { return shrinking_.is_first_to_wait(); }

 private:
  const MessageParts& parts_;
  const Shrinking& shrinking_;
  WaitHook& hook_;
  Watchdog watchdog_;
};

std::string no_memory_text(const std::string& reason) {
  return "shrink: the ranks of this communicator share no memory (" + reason +
         "). Restart the job, from a checkpoint if there is one.";
}

}  // namespace

std::shared_ptr<Communicator> Communicator::shrink(WaitHook& hook, std::vector<int>& ended) {
  const std::uint64_t begin = now_ns();
  stop_driving_after_failure();
  Settings settings = settings_;
  settings.deterministic = agreed_.deterministic;
  settings.profile = observer_.keeps_profile();
  if (size() == 1) return in_memory(0, 1, settings, liveness_.names(), nullptr, begin);
  if (!process_poisoned) prepare(hook);
  if (!node_path_.serves_all()) throw UsageError(no_memory_text(choice_.place.why_no_memory));
  hook.long_work();
  Shrinking shrinking(*node_path_.node());
  ShrinkPoll poll(parts_, shrinking, hook);
  auto node = shrinking.run(&poll);
  for (const std::size_t rank : shrinking.ended()) {
    const RankNames names = liveness_.names();
    if (!names.world_ranks().empty()) ended.push_back(names.world_ranks()[rank]);
  }
  tell_survived(ended);
  RankNames names = node->names();
  return in_memory(shrinking.rank(), shrinking.size(), settings, std::move(names), std::move(node),
                   begin);
}

}  // namespace gradred
