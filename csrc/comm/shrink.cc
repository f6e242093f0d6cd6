// A communicator of the ranks that live, which has shared memory and nothing else.
#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/driving.h"
#include "comm/node_call.h"
#include "liveness/supervisor.h"
#include "node/shrinking.h"

namespace gradred {
namespace {

// What a rank does while it waits for the others that live. Once a death is known the MPI is left
// alone: it may wait for the dead.
class ShrinkPoll final : public Poll {
 public:
  ShrinkPoll(Communicator& comm, const Shrinking& shrinking, WaitHook& hook)
      : comm_(comm), shrinking_(shrinking), hook_(hook) {}

  void poll() override {
    hook_.waiting();
    if (!process_poisoned) comm_.progress();
    watchdog_.check(*this);
  }
  WaitRecord record() const { return shrinking_.wait_record(); }
  std::string text(std::uint64_t waited) const {
    return comm_.own_name() + " has waited " + seconds_text(waited) + " in " + shrinking_.missing();
  }
  bool reports() const { return shrinking_.is_first_to_wait(); }

 private:
  Communicator& comm_;
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
  stop_driving_after_failure();
  if (size_ == 1) {
    return std::make_shared<Communicator>(*this, std::vector<std::size_t>{0}, 0, nullptr);
  }
  if (!process_poisoned) prepare(hook);
  if (node_ == nullptr) throw UsageError(no_memory_text(choice_.place.why_no_memory));
  hook.long_work();
  Shrinking shrinking(*node_);
  ShrinkPoll poll(*this, shrinking, hook);
  auto node = shrinking.run(&poll);
  for (const std::size_t rank : shrinking.ended()) {
    const RankNames names = this->names();
    if (!names.world_ranks().empty()) ended.push_back(names.world_ranks()[rank]);
  }
  tell_survived(ended);
  return std::make_shared<Communicator>(*this, shrinking.members(), shrinking.rank(),
                                        std::move(node));
}

Communicator::Communicator(const Communicator& old, const std::vector<std::size_t>& members,
                           int rank, std::unique_ptr<NodeGroup> node)
    : user_(mpi::get().is.comm_null),
      rank_(rank),
      size_(static_cast<int>(members.size())),
      state_(State::kNodeOnly),
      settings_(old.settings_),
      deterministic_(old.deterministic_),
      starts_on_node_(true),
      spins_(old.spins_),
      direct_(true),
      blocking_set_up_(true),
      choice_(size_, {}),
      node_(std::move(node)),
      liveness_(user_, rank_, size_, operation_log_) {
  liveness_.open({.names = node_ ? node_->names() : old.names(), .node = node_.get()});
  if (node_) Registry::get().count_group(1);
  choice_.place.why_no_messages = choice_.place.why_no_mpi = kShrunk;
  choice_.settle(assumed_figures());
}

}  // namespace gradred
