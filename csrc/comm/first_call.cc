// The first blocking call on a communicator: its parts get what the ranks find out together.
#include <utility>

#include "base/clock.h"
#include "comm/communicator.h"
#include "comm/measuring.h"
#include "comm/node_call.h"
#include "comm/set_up.h"

namespace gradred {

// Blocking and collective: only within a call that blocks anyway.
void Communicator::set_up(WaitHook& hook) {
  hook.long_work();
  const std::lock_guard lock(mutex_);
  if (blocking_set_up_) return;
  liveness_.throw_if_failed_before("the first call on a communicator");
  liveness_.throw_if_failed();
  try {
    set_up_parts(hook);
  } catch (...) {  // half set up: the peers know nothing of it
    liveness_.fail(std::current_exception());
    throw;
  }
  blocking_set_up_ = true;
}

void Communicator::set_up_parts(WaitHook& hook) {
  const std::uint64_t begin = now_ns();
  Registry::get().reap();
  SetUpCalls calls(user_, rank_, size_, hook);
  SetUp set_up(calls, settings_, choice_);
  try {
    set_up.run();
  } catch (...) {
    adopt(set_up);
    throw;
  }
  adopt(set_up);
  liveness_.open(std::move(set_up.found));
  const bool chooses =
      choice_.place.topology.hosts > 1 && path_ != nullptr && choice_.wish.plan.empty();
  const Figures found = chooses && set_up.tunes ? figures(calls, hook) : assumed_figures();
  if (path_ != nullptr) {
    path_->transport().cut_messages(choice_.place.topology.host_of, found.piece_bytes);
  }
  choice_.settle(found);
  observer_.profile(set_up.profiles);
  observer_.set_up(calls, decorations(settings_).trace, begin);
  direct_ = observer_.idle();
}

void Communicator::adopt(Established& made) {
  choice_.wish = std::move(made.wish);
  choice_.place = std::move(made.place);
  key_ = made.key;
  deterministic_ = made.deterministic;
  threads_drive_ = made.threads_drive;
  starts_on_node_ = made.starts_on_node;
  spins_ = made.spins;
  tag_range_ = std::move(made.tag_range);
  path_ = std::move(made.path);
  node_ = std::move(made.node);
  host_ = std::move(made.host);
  if (local_group() != nullptr) Registry::get().count_group(1);
  state_ = path_ != nullptr ? State::kReady : State::kMpiOnly;
  if (path_ != nullptr) operation_log_.open(path_->transport(), tag_range_->duplicate->notices);
}

Figures Communicator::figures(SetUpCalls& calls, WaitHook& hook) {
  Trials trials;
  trials.run = [&](const Call& call, const Plan& plan) {
    plan.family->run(*this, plan, call, hook);
  };
  if (host_ != nullptr) {
    trials.meet_on_host = [&] {
      NodePoll poll(*this, hook);
      host_->run({}, &poll);
    };
  }
  return find_figures(calls, path_->transport(), choice_.place, settings_.figures, trials);
}

}  // namespace gradred
