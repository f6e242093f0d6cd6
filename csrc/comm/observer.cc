#include "comm/observer.h"

#include <memory>
#include <numeric>

#include "base/clock.h"
#include "calls/place_among_all.h"
#include "comm/dispatch.h"
#include "engine/notices/comm_liveness.h"
#include "mpi/world_ranks.h"

namespace gradred {

// ---- set-up ---------------------------------------------------------------------------------

Observer::~Observer() {
  if (trace_ != nullptr) trace_->close_line(trace_line_);
}

void Observer::profile(bool wanted) {
  if (!wanted) profile_ = nullptr;
  if (!wanted || profile_ != nullptr) return;
  const auto [rank, size] = place_among_all(parts_.member.rank, parts_.member.size);
  profile_ = std::make_shared<Profile>();
  profile_->started_at(now_ns(), rank, size);
}

void Observer::open(Trace* trace, std::uint64_t began_ns) {
  trace_ = trace;
  if (trace_ != nullptr) trace_line_ = trace_->open_line();
  if (profile_ == nullptr) return;
  std::vector<int> world = parts_.liveness.names().world_ranks();
  if (world.empty()) {  // spawned or connected: the ranks of this communicator
    world.resize(static_cast<std::size_t>(parts_.member.size));
    std::iota(world.begin(), world.end(), 0);
  }
  quick_profile_ = profile_.get();
  profile_->set_up(node() != nullptr && trace_ == nullptr, std::move(world), now_ns() - began_ns);
}

NodeGroup* Observer::node() const { return parts_.node_path.node(); }

void Observer::log_results(ResultLog* log) {
  results_ = log != nullptr
                 ? std::make_shared<LoggedResults>(*log, parts_.member.rank, parts_.member.size)
                 : nullptr;
}

// ---- blocking calls ---------------------------------------------------------------------------

inline void Observer::carry_out(const Call& call, WaitHook& hook, Mode mode) {
  const std::uint64_t number = results_ == nullptr ? 0 : results_->begin();
  if (mode == Mode::kBlocking) {
    dispatch_.run(call, hook);
  } else {
    dispatch_.run_startable(call, hook);
  }
  if (results_ != nullptr) [[unlikely]] {
    results_->end(number, results_->result_of(call));
  }
}

template <Mode mode>
void Observer::run(const Call& call, WaitHook& hook) {
  if (quick_profile_ == nullptr) [[unlikely]] {
    return profile_ == nullptr ? run_traced(call, hook, mode) : run_timed(call, hook, mode);
  }
  ProfileRow* const row = quick_profile_->count_untimed(call, mode);
  if (row == nullptr) [[unlikely]] {
    return run_timed(call, hook, mode);
  }
  // Calls are untimed only if all ranks share memory.
  node()->charge_long_waits(row->waits());
  carry_out(call, hook, mode);
}
template void Observer::run<Mode::kBlocking>(const Call&, WaitHook&);
template void Observer::run<Mode::kPersistentCall>(const Call&, WaitHook&);

void Observer::run_timed(const Call& call, WaitHook& hook, Mode mode) {
  ProfileRow& row = profile_->row(call, mode);
  NodeGroup* const node = this->node();
  const bool looks = row.looks() && node != nullptr;
  const std::uint64_t waited_before = row.waits();
  const std::uint64_t begin = now_ns();
  if (node != nullptr) {
    node->arrive(begin);
    node->charge_long_waits(row.waits());
  }
  try {
    run_traced(call, hook, mode);
  } catch (...) {
    if (node != nullptr) node->arrive(0);  // the call may not have reached an operation
    throw;
  }
  row.took(now_ns() - begin - (row.waits() - waited_before));
  row.count(call.count * size_of(call.dtype));
  note_way(call, mode, row);
  row.plan_sample();
  if (looks) row.look(*node);
}

void Observer::note_way(const Call& call, Mode mode, ProfileRow& row) const {
  const Family* const family = dispatch_.family_for(call, mode != Mode::kBlocking);
  if (family == nullptr) return;
  const bool on_node = family->used_transport() == UsedTransport::kUnknown && node() != nullptr;
  const UsedTransport transport = on_node ? node()->used_transport() : family->used_transport();
  const bool on_devices =
      transport == UsedTransport::kDevices || transport == UsedTransport::kDevicesCopied;
  row.add_transport(transport,
                    !call.on_host() && !on_devices && works_on_copies(family->access(call)));
}

void Observer::run_traced(const Call& call, WaitHook& hook, Mode mode) {
  if (trace_ == nullptr) return carry_out(call, hook, mode);
  const bool blocking = mode == Mode::kBlocking;
  const Family* const family = dispatch_.family_for(call, !blocking);
  if (family == nullptr || family->traced_as() == nullptr) {
    return carry_out(call, hook, mode);  // an error; or the transport traces it
  }
  TracedCall traced(trace_, trace_line_, family->traced_as(), text_of(mode), call.signature());
  carry_out(call, hook, mode);
  traced.ended();
}

// ---- started calls ----------------------------------------------------------------------------

std::shared_ptr<Observation> Observer::observation(const Call& call) const {
  if (idle()) return nullptr;
  const Family* const family = dispatch_.family_for(call, true);
  // The MPI notifies nobody of the end of its own operations.
  const bool traced = trace_ != nullptr && family != nullptr &&
                      family->used_transport() != UsedTransport::kMpi &&
                      family->traced_as() != nullptr;
  if (profile_ == nullptr && !traced && results_ == nullptr) return nullptr;
  return std::make_shared<Observation>(profile_, traced ? trace_ : nullptr, call,
                                       traced ? family->traced_as() : nullptr, results_);
}

}  // namespace gradred
