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
#include "comm/offer.h"
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

template <class Part>
std::vector<Part> parts(const std::vector<Offer>& all, Part Offer::* which) {
  std::vector<Part> found;
  for (const Offer& one : all) found.push_back(one.*which);
  return found;
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
  Registry::get().reap();
  SetUpCalls calls(user_, rank_, size_, hook);
  make_offers(calls);
  const bool chooses = place_.topology.hosts > 1 && path_ != nullptr && plan_.empty();
  settle_place(chooses && tunes_
                   ? find_figures(calls, path_->transport(), place_.topology, settings_.figures)
                   : assumed_figures());
  trace_ = decorations(settings_).trace;
  if (trace_ != nullptr) trace_line_ = trace_->open_line();
  set_up_profile(calls, begin);
  direct_ = profile_ == nullptr && trace_ == nullptr;
}

// One message, and more only where the ranks have too little in common.
void Communicator::make_offers(SetUpCalls& calls) {
  const std::vector<int> world_ranks = Registry::get().world_ranks(user_);
  names_ = RankNames(world_ranks);
  LaneAgreement lane(calls, world_ranks);
  MemoryAgreement memory(calls, world_ranks, memory_wish(), node_options());
  const Offer mine{.settings = offered_settings(), .lane = lane.offer(), .memory = memory.offer()};
  std::vector<Offer> all(static_cast<std::size_t>(size_));
  calls.allgather(&mine, sizeof mine, all.data());
  const auto differs = [](const Offer& one) { return one.begins != Offer::kBegins; };
  if (std::ranges::any_of(all, differs)) throw UsageError(kFirstCallsDiffer);
  agree_on_settings(parts(all, &Offer::settings));
  node_ = memory.settle(parts(all, &Offer::memory));
  set_up_path(lane.settle(calls, parts(all, &Offer::lane)));
  if (node_ != nullptr) {
    set_up_place_of_members();
  } else {
    set_up_topology(calls);
    set_up_node(calls, parts(all, &Offer::memory));
  }
  if (node_) {
    place_.why_no_memory.clear();
    Registry::get().count_group(1);
  }
}

void Communicator::set_up_path(std::unique_ptr<Lane> lane) {
  lane_ = std::move(lane);
  if (lane_ == nullptr) {
    state_ = State::kMpiOnly;
    place_.why_no_messages = kNoneLeft;
    if (deterministic_) place_.why_no_mpi = kNoneLeft;
    return;
  }
  path_ = std::make_unique<SchedulePath>(lane_->duplicate->comm, rank_, size_,
                                         TagSpace::make(lane_->id, Registry::get().largest_tag()),
                                         decorations(settings_));
  ledger_.open(path_->transport(), lane_->duplicate->notices);
  state_ = State::kReady;
}

SettingsOffer Communicator::offered_settings() const {
  SettingsOffer mine;
  set_text(mine.plan, plan_);
  mine.slices = slices_;
  mine.key = random_number();
  mine.profile = settings_.profile ? 1 : 0;
  mine.deterministic = deterministic_ ? 1 : 0;
  mine.tunes = tunes_ ? 1 : 0;
  mine.threads_drive = thread_may_drive() ? 1 : 0;
  mine.starts_on_node = may_start_on_node() ? 1 : 0;
  return mine;
}

void Communicator::agree_on_settings(const std::vector<SettingsOffer>& all) {
  const SettingsOffer& agreed = all.front();
  plan_ = agreed.plan;
  slices_ = agreed.slices;
  key_ = agreed.key;
  deterministic_ = agreed.deterministic != 0;
  tunes_ = agreed.tunes != 0 && !deterministic_;
  threads_drive_ =
      std::ranges::all_of(all, [](const SettingsOffer& one) { return one.threads_drive != 0; });
  starts_on_node_ =
      std::ranges::all_of(all, [](const SettingsOffer& one) { return one.starts_on_node != 0; });
  if (agreed.profile == 0) profile_ = nullptr;
  if (agreed.profile != 0 && profile_ == nullptr) open_profile(now_ns());
}

NodeOptions Communicator::node_options() const {
  return {.ranks_on_host = settings_.ranks_on_host};
}

MemoryOffer::Wish Communicator::memory_wish() const {
  if (!settings_.shared_memory) return MemoryOffer::Wish::kOff;
  const bool may_add = Registry::get().may_add_group();
  return may_add ? MemoryOffer::Wish::kShares : MemoryOffer::Wish::kHasTooMany;
}

// The ranks share memory already: they are on one host, and have met.
void Communicator::set_up_place_of_members() {
  place_.topology = Topology::of(std::vector<int>(static_cast<std::size_t>(size_), 0));
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) add_neighbour(rank, node_->process(rank));
  }
  spins_ = node_->spins();
}

void Communicator::add_neighbour(int rank, const ProcessId& process) {
  // Ranks whose hosts have equal names may be in different containers or machines all the same.
  if (!meet(process)) return;
  neighbours_.emplace_back(rank, process);
  if (names_.world_ranks().empty()) return;  // some belong to another program
  meet_companion(process);
  Registry::get().remember(names_.world_ranks()[static_cast<std::size_t>(rank)], process);
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
  const std::vector<int>& host_of = place_.topology.host_of;
  std::vector<Cores> cores;
  for (int rank = 0; rank < size_; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    if (host_of[i] != host_of[static_cast<std::size_t>(rank_)]) continue;
    cores.push_back(places[i].cores);
    if (rank != rank_) add_neighbour(rank, places[i].process);
  }
  spins_ = each_has_a_core(cores, std::max(cores.size(), settings_.ranks_on_host));
}

// One rank without shared memory is all without.
void Communicator::set_up_node(SetUpCalls& calls, const std::vector<MemoryOffer>& all) {
  using Wish = MemoryOffer::Wish;
  const auto any = [&](Wish wish) {
    return std::ranges::any_of(all, [&](const MemoryOffer& one) { return one.wish == wish; });
  };
  if (place_.topology.hosts != 1) {
    place_.why_no_memory = "the ranks are on " + std::to_string(place_.topology.hosts) + " hosts";
  } else if (any(Wish::kOff)) {
    place_.why_no_memory = "GRADRED_SHM is off";
  } else if (any(Wish::kHasTooMany) && !deterministic_) {
    place_.why_no_memory = "64 other communicators share memory already";
  } else {
    node_ = NodeGroup::create(calls, node_options(), place_.why_no_memory);
    if (node_ == nullptr && deterministic_) {
      throw TransportError(
          "GRADRED_DETERMINISTIC wants the same plans each time, and here they use "
          "shared memory, which is not to be had: " +
          place_.why_no_memory + ". Make room for it, or do without it each time: GRADRED_SHM=0");
    }
    if (node_ != nullptr) Registry::get().add_pool(node_->pool());
  }
}

}  // namespace gradred
