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
#include "comm/measuring.h"
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

NodeCall node_call(const Call& call) {
  return {.kind = call.kind,
          .send = call.send,
          .recv = call.recv,
          .count = call.count,
          .element = size_of(call.dtype),
          .reduce = find_reduction(call.op, call.dtype),
          .root = call.root,
          .signature = call.signature()};
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
  if (const auto failure = failure_before("the first call on a communicator")) {
    ledger_.note_failure(*failure);
  }
  throw_if_failed();
  try {
    set_up_parts(hook);
  } catch (...) {  // half set up: the peers know nothing of it
    fail(std::current_exception());
    throw;
  }
  blocking_set_up_ = true;
}

void Communicator::set_up_parts(WaitHook& hook) {
  const std::uint64_t begin = now_ns();
  SetUpCalls calls(user_, rank_, size_, hook);
  agree_on_settings(calls);
  set_up_path(calls);
  set_up_topology(calls);
  set_up_node(calls);
  const bool chooses = place_.topology.hosts > 1 && path_ != nullptr && plan_.empty();
  settle_place(chooses && tunes_
                   ? find_figures(calls, path_->transport(), place_.topology, settings_.figures)
                   : assumed_figures());
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
    place_.why_no_messages = kNoneLeft;
    if (deterministic_) place_.why_no_mpi = kNoneLeft;
    return;
  }
  path_ = std::make_unique<SchedulePath>(lane_->duplicate->comm, rank_, size_,
                                         TagSpace::make(lane_->id, largest_tag),
                                         decorations(settings_));
  ledger_.open(path_->transport(), lane_->duplicate->notices);
  state_ = State::kReady;
}

// What must be the same on all ranks: rank 0's is, and what only all can do. This is the first
// message of a communicator, so it shows whether all ranks make such a call.
void Communicator::agree_on_settings(SetUpCalls& calls) {
  struct Wishes {
    std::uint64_t begins = 0x6772616472656430;  // "gradred0"
    std::uint64_t slices = 0, key = 0, profile = 0, deterministic = 0, tunes = 0;
    std::uint64_t threads_drive = 0, starts_on_node = 0;
    char plan[64] = {};
  };
  Wishes mine;
  const Wishes usual;
  set_text(mine.plan, plan_);
  mine.slices = slices_;
  mine.key = random_number();
  mine.profile = settings_.profile ? 1 : 0;
  mine.deterministic = deterministic_ ? 1 : 0;
  mine.tunes = tunes_ ? 1 : 0;
  mine.threads_drive = thread_may_drive() ? 1 : 0;
  mine.starts_on_node = may_start_on_node() ? 1 : 0;
  std::vector<Wishes> all(static_cast<std::size_t>(size_));
  calls.allgather(&mine, sizeof mine, all.data());
  const auto differs = [&](const Wishes& one) { return one.begins != usual.begins; };
  if (std::ranges::any_of(all, differs)) throw UsageError(kFirstCallsDiffer);
  const Wishes& agreed = all.front();
  plan_ = agreed.plan;
  slices_ = agreed.slices;
  key_ = agreed.key;
  deterministic_ = agreed.deterministic != 0;
  tunes_ = agreed.tunes != 0 && !deterministic_;
  threads_drive_ =
      std::ranges::all_of(all, [](const Wishes& one) { return one.threads_drive != 0; });
  starts_on_node_ =
      std::ranges::all_of(all, [](const Wishes& one) { return one.starts_on_node != 0; });
  if (agreed.profile == 0) profile_ = nullptr;
  if (agreed.profile != 0 && profile_ == nullptr) open_profile(now_ns());
}

void Communicator::set_up_topology(SetUpCalls& calls) {
  struct Place {
    HostName host;
    ProcessId process;
    Cores cores;
  };
  std::vector<Place> places(static_cast<std::size_t>(size_));
  const Place mine{host_name(), this_process(), cores_of_this_thread()};
  calls.allgather(&mine, sizeof mine, places.data());
  std::vector<HostName> names;
  for (const Place& place : places) names.push_back(place.host);
  place_.topology = Topology::of(number_hosts(names));
  const std::vector<int> world_ranks = Registry::get().world_ranks(user_);
  names_ = RankNames(world_ranks);
  std::vector<Cores> cores;
  for (int rank = 0; rank < size_; ++rank) {
    const Place& place = places[static_cast<std::size_t>(rank)];
    const bool here = place_.topology.host_of[static_cast<std::size_t>(rank)] ==
                      place_.topology.host_of[static_cast<std::size_t>(rank_)];
    if (here) cores.push_back(place.cores);
    // Ranks whose hosts have equal names may be in different containers or machines all the same.
    if (!here || rank == rank_ || !meet(place.process)) continue;
    neighbours_.emplace_back(rank, place.process);
    if (!world_ranks.empty()) {  // else some belong to another program, which ends when it likes
      meet_companion(place.process);
      Registry::get().remember(world_ranks[static_cast<std::size_t>(rank)], place.process);
    }
  }
  spins_ = each_has_a_core(cores, std::max(cores.size(), settings_.ranks_on_host));
}

void Communicator::set_up_node(SetUpCalls& calls) {
  Registry& registry = Registry::get();
  // Rank 0's bound and the settings of all: one rank without shared memory is all without.
  const bool may_add = deterministic_ || registry.may_add_segment();
  const std::int64_t mine = settings_.shared_memory ? (may_add ? 2 : 1) : 0;
  std::vector<std::int64_t> all(static_cast<std::size_t>(size_));
  calls.allgather(&mine, sizeof mine, all.data());
  if (place_.topology.hosts != 1) {
    place_.why_no_memory = "the ranks are on " + std::to_string(place_.topology.hosts) + " hosts";
  } else if (std::ranges::find(all, 0) != all.end()) {
    place_.why_no_memory = "GRADRED_SHM is off";
  } else if (std::ranges::find(all, 1) != all.end()) {
    place_.why_no_memory = "64 other communicators share memory already";
  } else {
    node_ = NodeGroup::create(calls, NodeOptions{.ranks_on_host = settings_.ranks_on_host},
                              place_.why_no_memory);
    if (node_ == nullptr && deterministic_) {
      throw TransportError(
          "GRADRED_DETERMINISTIC wants the same plans each time, and here they use "
          "shared memory, which is not to be had: " +
          place_.why_no_memory + ". Make room for it, or do without it each time: GRADRED_SHM=0");
    }
  }
  if (node_) {
    place_.why_no_memory.clear();
    registry.count_segment(1);
  }
}

}  // namespace gradred
