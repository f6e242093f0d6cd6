#include "comm/set_up/set_up.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/errors.h"
#include "base/fresh_number.h"
#include "base/text.h"
#include "calls/why_not.h"
#include "comm/set_up/host_groups.h"
#include "engine/driving.h"
#include "liveness/local_peers.h"
#include "mpi/world_ranks.h"
#include "node/memory/cores.h"
#include "observe/process_trace.h"

namespace gradred {
namespace {

constexpr const char* kFirstCallsDiffer =
    "the ranks' first calls on the communicator do not match: on this rank it blocks, on another "
    "it "
    "does not, or is none of gradred's. Let all ranks make the same calls in the same order";

// Ranks with equal names may share memory: NodeGroup::create() finds out. meet() finds out whether
// they see each other's processes.
struct HostName {
  std::array<char, 160> text{};
  bool operator<(const HostName& other) const { return text < other.text; }
};

HostName host_name() {
  HostName host;
  std::memcpy(host.text.data(), host_id().data(), std::min(host_id().size(), host.text.size() - 1));
  return host;
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

void SetUp::run() {
  found.names = calls_.names();
  TagRangeAgreement ranges(calls_, found.names.world_ranks());
  MemoryAgreement memory(calls_.rank(), found.names, memory_wish(settings_),
                         node_options(settings_, first_bytes_));
  const Offer mine{
      .settings = offered_settings(), .tag_range = ranges.offer(), .memory = memory.offer()};
  std::vector<Offer> all(static_cast<std::size_t>(calls_.size()));
  calls_.allgather(&mine, sizeof mine, all.data());
  const auto differs = [](const Offer& one) { return one.begins != Offer::kBegins; };
  if (std::ranges::any_of(all, differs)) throw UsageError(kFirstCallsDiffer);
  agree_on_settings(parts(all, &Offer::settings));
  node = memory.settle(parts(all, &Offer::memory));
  make_path(ranges.settle(calls_, parts(all, &Offer::tag_range)));
  if (node != nullptr) {
    meet_ranks_of_node();
  } else {
    find_topology();
    share_memory(parts(all, &Offer::memory));
  }
  if (node) place.why_no_memory.clear();
  found.key = key;
  found.node = node.get();
  found.host = host.get();
  if (tag_range != nullptr) found.duplicate = tag_range->duplicate->comm;
}

void SetUp::make_path(std::unique_ptr<TagRange> range) {
  tag_range = std::move(range);
  if (tag_range == nullptr) {
    place.why_no_messages = kNoneLeft;
    if (deterministic) place.why_no_mpi = kNoneLeft;
    return;
  }
  path = std::make_unique<SchedulePath>(tag_range->duplicate->comm, calls_.rank(), calls_.size(),
                                        TagSpace::make(tag_range->id, largest_tag()),
                                        process_trace(settings_, calls_.rank(), calls_.size()));
}

SettingsOffer SetUp::offered_settings() const {
  SettingsOffer mine;
  set_text(mine.plan, wish.plan);
  set_text(mine.device_plan, wish.device_plan);
  mine.slices = wish.slices;
  mine.key = fresh_number();
  mine.profile = settings_.profile ? 1 : 0;
  mine.deterministic = settings_.deterministic ? 1 : 0;
  mine.one_order = wish.one_order ? 1 : 0;
  mine.tunes = settings_.tune ? 1 : 0;
  mine.threads_drive = thread_may_drive() ? 1 : 0;
  mine.starts_on_node = may_start_on_node() ? 1 : 0;
  return mine;
}

void SetUp::agree_on_settings(const std::vector<SettingsOffer>& all) {
  const SettingsOffer& agreed = all.front();
  wish = {agreed.plan, agreed.device_plan, agreed.slices, agreed.one_order != 0};
  key = agreed.key;
  deterministic = agreed.deterministic != 0;
  tunes = agreed.tunes != 0 && !deterministic;
  threads_drive =
      std::ranges::all_of(all, [](const SettingsOffer& one) { return one.threads_drive != 0; });
  starts_on_node =
      std::ranges::all_of(all, [](const SettingsOffer& one) { return one.starts_on_node != 0; });
  profiles = agreed.profile != 0;
}

void SetUp::add_local_peer(int rank, const ProcessId& process) {
  // Ranks whose hosts have equal names may still be in different containers or on different
  // machines.
  if (!meet(process)) return;
  found.local_peers.emplace_back(rank, process);
  const std::vector<int>& world_ranks = found.names.world_ranks();
  if (world_ranks.empty()) return;  // some ranks belong to another program
  meet_job_peer(process);
  remember_process(world_ranks[static_cast<std::size_t>(rank)], process);
}

// The ranks share memory already, so they are on one host, and have met.
void SetUp::meet_ranks_of_node() {
  for (int rank = 0; rank < calls_.size(); ++rank) {
    if (rank != calls_.rank()) add_local_peer(rank, node->process(rank));
  }
  spins = node->spins();
}

void SetUp::find_topology() {
  struct RankPlace {
    HostName host;
    ProcessId process;
    Cores cores;
  };
  std::vector<RankPlace> places(static_cast<std::size_t>(calls_.size()));
  const RankPlace mine{host_name(), this_process(), cores_of_this_thread()};
  calls_.allgather(&mine, sizeof mine, places.data());
  std::vector<HostName> names;
  for (const RankPlace& one : places) names.push_back(one.host);
  place.topology = Topology::of(number_hosts(names));
  const std::vector<int>& host_of = place.topology.host_of;
  std::vector<Cores> cores;
  for (int rank = 0; rank < calls_.size(); ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    if (host_of[i] != host_of[static_cast<std::size_t>(calls_.rank())]) continue;
    cores.push_back(places[i].cores);
    if (rank != calls_.rank()) add_local_peer(rank, places[i].process);
  }
  spins = each_has_a_core(cores, std::max(cores.size(), settings_.ranks_on_host));
}

// If one rank has no shared memory, all ranks go without it.
void SetUp::share_memory(const std::vector<MemoryOffer>& all) {
  std::vector<MemoryOffer::Wish> wishes;
  for (const MemoryOffer& one : all) wishes.push_back(one.wish);
  const std::string why_not = why_no_memory(wishes);
  if (place.topology.hosts != 1) {
    place.why_no_memory = "the ranks are on " + std::to_string(place.topology.hosts) + " hosts";
    share_memory_on_hosts(why_not);
    return;
  }
  place.why_no_memory = why_not;
  if (!why_not.empty()) return;
  node = NodeGroup::create(calls_, node_options(settings_), place.why_no_memory);
  if (node == nullptr) throw_if_deterministic(place.why_no_memory);
  if (node != nullptr) Registry::get().add_pool(node->pool());
}

void SetUp::share_memory_on_hosts(const std::string& why_not) {
  place.why_no_host_memory = path == nullptr ? place.why_no_messages : why_not;
  if (!place.why_no_host_memory.empty()) return;
  NodeOptions options = node_options(settings_);
  options.sleeps = true;
  host = make_host_group(calls_, path->transport(), place.topology, found.names, options,
                         place.why_no_host_memory);
  if (!place.why_no_host_memory.empty()) throw_if_deterministic(place.why_no_host_memory);
}

void SetUp::throw_if_deterministic(const std::string& why_no_memory) const {
  if (!deterministic) return;
  throw TransportError(
      "GRADRED_DETERMINISTIC wants the same plans each time, and here they use "
      "shared memory, which is not to be had: " +
      why_no_memory + ". Make room for it, or do without it each time: GRADRED_SHM=0");
}

}  // namespace gradred
