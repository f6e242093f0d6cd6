// Lanes of persistent calls: communicators of the same ranks on shared memory alone.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "comm/communicator.h"
#include "comm/own_calls.h"
#include "set_up/sharing.h"

namespace gradred {

std::shared_ptr<Communicator> Communicator::lane(const Call& call, bool one_order, WaitHook& hook) {
  // What a rank sends to the others: two answers, then for each lane whether it may be used again.
  constexpr std::size_t kServes = 0, kOneOrder = 1, kAnswers = 2;
  std::vector<std::uint8_t> mine(kAnswers + lanes_.size());
  mine[kServes] = size() == 1 || dispatch_.starts_on_node(call) ? 1 : 0;
  mine[kOneOrder] = one_order ? 1 : 0;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const bool is_free = lanes_[i].use_count() == 1 && !lanes_[i]->liveness().failed();
    mine[kAnswers + i] = is_free ? 1 : 0;
  }
  std::vector<std::uint8_t> all = mine;
  if (size() > 1) {
    all.resize(mine.size() * static_cast<std::size_t>(size()));
    OwnCalls(*this, hook).allgather(mine.data(), mine.size(), all.data());
  }
  const auto of_all = [&](std::size_t which) {
    for (std::size_t i = which; i < all.size(); i += mine.size()) {
      if (all[i] == 0) return false;
    }
    return true;
  };
  if (!of_all(kServes) || of_all(kOneOrder)) return nullptr;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (of_all(kAnswers + i)) return lanes_[i];
  }
  std::shared_ptr<Communicator> made = new_lane(hook);
  if (made != nullptr) lanes_.push_back(made);
  return made;
}

std::shared_ptr<Communicator> Communicator::new_lane(WaitHook& hook) {
  const std::uint64_t begin = now_ns();
  Settings settings = settings_;
  settings.deterministic = agreed_.deterministic;
  settings.profile = observer_.keeps_profile();
  std::unique_ptr<NodeGroup> node;
  if (size() > 1) {
    OwnCalls calls(*this, hook);
    std::string why_not;
    node = make_group(calls, node_options(settings), why_not);
    if (node == nullptr) return nullptr;  // there is too little memory
  }
  const auto made =
      std::make_shared<Communicator>(rank(), size(), settings, liveness_.names(), std::move(node));
  made->observe(begin);
  return made;
}

}  // namespace gradred
