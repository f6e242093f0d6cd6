// A communicator of the ranks that live, which has shared memory and nothing else.
#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/driving.h"
#include "comm/set_up.h"
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
    watch_.check(*this);
  }
  std::string text(std::uint64_t waited) const {
    return comm_.own_name() + " has waited " + seconds_text(waited) + " in " + shrinking_.missing();
  }
  bool reports() const { return shrinking_.is_first_to_wait(); }

 private:
  Communicator& comm_;
  const Shrinking& shrinking_;
  WaitHook& hook_;
  Watch watch_;
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
  if (node_ == nullptr) throw UsageError(no_memory_text(place_.why_no_memory));
  hook.long_work();
  Shrinking shrinking(*node_);
  ShrinkPoll poll(*this, shrinking, hook);
  auto node = shrinking.run(&poll);
  for (const std::size_t rank : shrinking.ended()) {
    const std::vector<int>& world_ranks = names_.world_ranks();
    if (!world_ranks.empty()) ended.push_back(world_ranks[rank]);
  }
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
      slices_(0),
      deterministic_(old.deterministic_),
      starts_on_node_(true),
      spins_(old.spins_),
      direct_(true),
      blocking_set_up_(true),
      node_(std::move(node)),
      names_(node_ ? node_->names() : old.names_) {
  if (node_) Registry::get().count_group(1);
  place_.topology = Topology::of(std::vector<int>(members.size(), 0));
  place_.why_no_messages = place_.why_no_mpi = kShrunk;
  settle_place(assumed_figures());
}

}  // namespace gradred
