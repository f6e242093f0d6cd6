// The first blocking call on a communicator: the ranks set up its parts together.
#include <utility>

#include "base/clock.h"
#include "comm/communicator.h"
#include "comm/set_up/measuring.h"
#include "comm/set_up/set_up.h"
#include "comm/shutdown_handshake.h"
#include "engine/driving.h"
#include "families/families.h"
#include "observe/process_trace.h"

namespace gradred {

// Blocking and collective: called only inside a call that blocks anyway.
void Communicator::set_up(WaitHook& hook, std::size_t first_bytes) {
  hook.long_work();
  const std::lock_guard lock(set_up_mutex_);
  if (agreed_.set_up) return;
  liveness_.throw_if_failed_before("the first call on a communicator");
  liveness_.throw_if_failed();
  try {
    set_up_parts(hook, first_bytes);
  } catch (...) {  // partly set up, which the peers do not know
    liveness_.fail(std::current_exception());
    throw;
  }
  begin_starting();
  leave_if_left(*this);
}

void Communicator::begin_starting() {
  agreed_.set_up = true;
  agreed_.starts = (node_path_.serves_all() && agreed_.starts_in_memory) ||
                   (agreed_.threads_drive && has_messages());
}

void Communicator::set_up_parts(WaitHook& hook, std::size_t first_bytes) {
  const std::uint64_t begin = now_ns();
  // An ended operation holds its communicator, and so the memory of its node group, until a thread
  // makes progress. If no call has had to wait, and the progress thread gets no core, no thread has
  // done so.
  drive();
  Registry::get().reap();
  SetUpCalls calls(handle(), rank(), size(), hook, liveness_.names());
  SetUp set_up(calls, settings_, choice_, first_bytes);
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
  observer_.open(process_trace(settings_, rank(), size()), begin);
  direct_ = may_be_direct();
}

void Communicator::adopt(Established& made) {
  choice_.wish = std::move(made.wish);
  choice_.place = std::move(made.place);
  agreed_.key = made.key;
  agreed_.deterministic = made.deterministic;
  agreed_.threads_drive = made.threads_drive;
  agreed_.starts_in_memory = made.starts_on_node;
  tag_range_ = std::move(made.tag_range);
  path_ = std::move(made.path);
  node_path_.open(std::move(made.node), std::move(made.host), made.spins);
  if (path_ != nullptr) operation_log_.open(path_->transport(), tag_range_->duplicate->notices);
}

Figures Communicator::figures(SetUpCalls& calls, WaitHook& hook) {
  Trials trials;
  trials.sources = plan_sources();
  trials.run = [&](const Call& call, const Plan& plan) {
    family_of(plan).run(parts_, plan, call, hook);
  };
  if (node_path_.host() != nullptr) {
    trials.meet_on_host = [&] { node_path_.agree({}, hook); };
  }
  return find_figures(calls, path_->transport(), choice_.place, settings_.figures, trials);
}

}  // namespace gradred
