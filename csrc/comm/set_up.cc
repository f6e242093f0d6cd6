#include "comm/set_up.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/clock.h"
#include "base/errors.h"
#include "base/failure.h"
#include "base/random.h"
#include "base/text.h"
#include "comm/driving.h"
#include "comm/members.h"
#include "comm/set_up_calls.h"
#include "node/neighbours.h"

namespace gradred {
namespace {

// Ranks with equal names may share memory; NodeGroup::create() finds out. Whether they see each
// other's processes, meet() does.
struct HostName {
  std::array<char, 160> text{};
  bool operator<(const HostName& other) const { return text < other.text; }
};

HostName host_name() {
  HostName host;
  std::memcpy(host.text.data(), host_id().data(), std::min(host_id().size(), host.text.size() - 1));
  return host;
}

// One per process: made when the first communicator is set up with a trace wanted.
std::unique_ptr<Trace>& trace() {
  static auto* trace = new std::unique_ptr<Trace>;
  return *trace;
}

Decorations decorations(const Settings& settings) {
  Decorations wanted;
  if (!settings.trace.empty()) {
    static std::once_flag once;
    std::call_once(once, [] {
      int rank = 0;
      mpi::get().check(mpi::get().call.Comm_rank(mpi::get().is.comm_world, &rank), "MPI_Comm_rank");
      trace() = std::make_unique<Trace>(rank);
    });
    wanted.trace = trace().get();
  }
  if (!settings.fault.empty()) wanted.fault = parse_fault(settings.fault);
  return wanted;
}

std::vector<int> number_hosts(const std::vector<HostName>& names) {
  std::map<HostName, int> numbers;
  std::vector<int> host_of;
  for (const HostName& name : names) {
    host_of.push_back(numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
  }
  return host_of;
}

}  // namespace

std::string AboutNode::text(std::uint64_t waited) const {
  return node.own_name() + " has waited " + seconds_text(waited) + " in " + node.missing();
}

void write_trace() {
  if (trace()) trace()->write(settings().trace);
}

void NodePoll::poll() {
  hook_.waiting();
  comm_.progress();
  watch_.check(AboutNode{comm_.node()});
}

const void* scaled_input(const Call& call, int size, std::vector<std::byte>& storage) {
  const bool blocks = call.kind == Kind::kReduceScatterBlock;
  const std::size_t count = call.count * (blocks ? static_cast<std::size_t>(size) : 1);
  const auto* input = static_cast<const std::byte*>(call.send != kInPlace ? call.send : call.recv);
  storage.assign(input, input + count * size_of(call.dtype));
  scale_input(call, storage.data(), count);
  return storage.data();
}

// ---- set-up ---------------------------------------------------------------------------------

void Communicator::progress() {
  if (!ledger_.quiet()) ledger_.progress();
  drive();
}

// Blocking and collective: only within a call that blocks anyway.
void Communicator::set_up(WaitHook& hook) {
  hook.long_work();
  const std::lock_guard lock(mutex_);
  if (blocking_set_up_) return;
  if (set_up_failure_) throw_report(*set_up_failure_, false);
  if (first_calls_differ_) throw UsageError(kFirstCallsDiffer);
  try {
    set_up_parts(hook);
  } catch (...) {
    process_poisoned.store(true, std::memory_order_relaxed);
    set_up_failure_ = report_of(std::current_exception());
    throw;
  }
  blocking_set_up_ = true;
}

void Communicator::set_up_parts(WaitHook& hook) {
  const std::uint64_t begin = now_ns();
  SetUpCalls calls(user_, rank_, size_, hook);
  if (state_ == State::kFresh) set_up_path(calls);
  // The operations in flight go on by the progress thread meanwhile, and by us.
  await_duplicate(hook, [this] { return path_ready_locked(); });
  adopt_settings(calls);
  set_up_topology(calls);
  set_up_node(calls);
  trace_ = decorations(settings_).trace;
  if (trace_ != nullptr) trace_line_ = trace_->open_line();
  set_up_profile(calls, begin);
  direct_ = profile_ == nullptr && trace_ == nullptr;
}

void Communicator::set_up_path(SetUpCalls& calls) {
  Registry& registry = Registry::get();
  const int largest_tag = registry.largest_tag();
  lane_ = registry.agree(calls);
  if (lane_ == nullptr) {
    state_ = State::kMpiOnly;
    return;
  }
  path_ = std::make_unique<SchedulePath>(lane_->duplicate->comm, rank_, size_,
                                         TagSpace::make(lane_->id, largest_tag),
                                         decorations(settings_));
  ledger_.open(path_->transport(), lane_->duplicate->notices);
  state_ = State::kReady;
}

// What must be the same on all ranks: rank 0's is.
void Communicator::adopt_settings(SetUpCalls& calls) {
  struct {
    char plan[64] = {};
    std::uint64_t slices = 0, key = 0, profile = 0, deterministic = 0;
  } agreed;
  set_text(agreed.plan, plan_);
  agreed.slices = slices_;
  agreed.key = random_number();
  agreed.profile = settings_.profile ? 1 : 0;
  agreed.deterministic = deterministic_ ? 1 : 0;
  calls.bcast(&agreed, sizeof agreed);
  plan_ = agreed.plan;
  slices_ = agreed.slices;
  key_ = agreed.key;
  deterministic_ = agreed.deterministic != 0;
  if (agreed.profile == 0) profile_ = nullptr;
  if (agreed.profile != 0 && profile_ == nullptr) open_profile(now_ns());
}

void Communicator::set_up_topology(SetUpCalls& calls) {
  struct Place {
    HostName host;
    ProcessId process;
  };
  std::vector<Place> places(static_cast<std::size_t>(size_));
  const Place mine{host_name(), this_process()};
  calls.allgather(&mine, sizeof mine, places.data());
  std::vector<HostName> names;
  for (const Place& place : places) names.push_back(place.host);
  topology_ = Topology::of(number_hosts(names));
  const std::vector<int> world_ranks = Registry::get().world_ranks(user_);
  names_ = RankNames(world_ranks);
  for (int rank = 0; rank < size_; ++rank) {
    const Place& place = places[static_cast<std::size_t>(rank)];
    const bool here = topology_.host_of[static_cast<std::size_t>(rank)] ==
                      topology_.host_of[static_cast<std::size_t>(rank_)];
    // Ranks whose hosts have equal names may be in different containers or machines all the same.
    if (!here || rank == rank_ || !meet(place.process)) continue;
    neighbours_.emplace_back(rank, place.process);
    if (!world_ranks.empty()) {  // else some belong to another program, which ends when it likes
      meet_companion(place.process);
      Registry::get().remember(world_ranks[static_cast<std::size_t>(rank)], place.process);
    }
  }
}

void Communicator::set_up_node(SetUpCalls& calls) {
  Registry& registry = Registry::get();
  // Rank 0's bound and the settings of all: one rank without shared memory is all without.
  const bool may_add = deterministic_ || registry.may_add_segment();
  const std::int64_t mine = settings_.shared_memory ? (may_add ? 2 : 1) : 0;
  std::vector<std::int64_t> all(static_cast<std::size_t>(size_));
  calls.allgather(&mine, sizeof mine, all.data());
  if (topology_.hosts != 1) {
    node_reason_ = "the ranks are on " + std::to_string(topology_.hosts) + " hosts";
  } else if (std::ranges::find(all, 0) != all.end()) {
    node_reason_ = "GRADRED_SHM is off";
  } else if (std::ranges::find(all, 1) != all.end()) {
    node_reason_ = "64 other communicators share memory already";
  } else {
    node_ = NodeGroup::create(calls, NodeOptions{.ranks_on_host = settings_.ranks_on_host},
                              node_reason_);
    if (node_ == nullptr && deterministic_) {
      throw TransportError(
          "GRADRED_DETERMINISTIC wants the same plans each time, and here they use "
          "shared memory, which is not to be had: " +
          node_reason_ + ". Make room for it, or do without it each time: GRADRED_SHM=0");
    }
  }
  if (node_) registry.count_segment(1);
}

// Local: MPI_Comm_idup returns at once. A blocking MPI_Comm_dup here would hang legal programs.
void Communicator::start_duplicating() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kFresh) return;
  const mpi::Mpi& mpi = mpi::get();
  if (mpi.call.Comm_idup(user_, &duplicate_, &duplicating_) != 0) {
    state_ = State::kMpiOnly;
    return;
  }
  state_ = State::kDuplicating;
}

void Communicator::finish_duplicating(WaitHook& hook) {
  try {
    await_duplicate(hook, [this] { return path_ready(); });
  } catch (...) {
    process_poisoned.store(true, std::memory_order_relaxed);
    throw;
  }
}

// The operations that wait for it, too, say what is missing.
template <class Ready>
void Communicator::await_duplicate(WaitHook& hook, Ready&& ready) {
  Watch watch;
  const FirstCall about{user_, rank_, size_, FirstCall::Kind::kStarts};
  for (Patience patience; state_ == State::kDuplicating && !ready();) {
    patience.wait([&] {
      hook.waiting();
      drive();
      throw_if_lost("a call that needs its first non-blocking call");
      watch.check(about);
    });
  }
}

bool Communicator::path_ready() {
  if (state_ == State::kReady) return true;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && path_ready_locked();
}

bool Communicator::path_ready_locked() {
  if (state_ == State::kReady) return true;
  const mpi::Mpi& mpi = mpi::get();
  if (state_ != State::kDuplicating) return false;
  int done = 0;
  if (const int code = mpi.call.Test(&duplicating_, &done, mpi.is.status_ignore); code != 0) {
    int error_class = 0;
    mpi.call.Error_class(code, &error_class);
    // MPICH's for none left; else it has met another call.
    if (error_class != mpi.is.err_other) first_calls_differ_ = true;
    state_ = State::kMpiOnly;
    return false;
  }
  if (done == 0) return false;
  lane_ = std::make_unique<Lane>();
  lane_->duplicate = std::make_shared<Duplicate>();
  lane_->duplicate->comm = mpi.normalise(duplicate_);
  mpi.check(mpi.call.Comm_set_errhandler(lane_->duplicate->comm, mpi.is.errors_return),
            "MPI_Comm_set_errhandler");
  const int largest_tag = Registry::get().largest_tag();
  path_ = std::make_unique<SchedulePath>(lane_->duplicate->comm, rank_, size_,
                                         TagSpace::make(0, largest_tag), decorations(settings_));
  ledger_.open(path_->transport(), lane_->duplicate->notices);
  state_ = State::kReady;
  return true;
}

}  // namespace gradred
