#include "comm/selector.h"

#include <algorithm>
#include <bit>

#include "base/signature.h"
#include "node/layout.h"

namespace gradred {
namespace {

// Below the first bound latency decides, above the second bandwidth. Rounds cost 1-3 us and a link
// carries about 10 bytes per nanosecond, so a message of some ten KiB costs as much as its round.
constexpr std::size_t kSmall = std::size_t{8} << 10;
constexpr std::size_t kLarge = std::size_t{4} << 20;
constexpr std::size_t kSlice = std::size_t{8} << 20;
constexpr std::size_t kMostSlices = 4;

bool power_of_two(int size) { return std::has_single_bit(static_cast<unsigned>(size)); }

Choice choose_allreduce(std::size_t bytes, int size, const Topology& topology) {
  if (bytes <= kSmall) {
    return {"recursive_doubling", 1, {}, "up to 8 KiB the number of rounds decides"};
  }
  if (topology.hosts > 1 && topology.local > 1) {
    Parameters parameters;
    parameters.local = topology.local;
    parameters.across = power_of_two(topology.hosts) ? "rabenseifner" : "circulant";
    return {"hierarchical", 1, parameters, "each byte crosses the network once per rank of a host"};
  }
  if (bytes <= kLarge) {
    return power_of_two(size)
               ? Choice{"rabenseifner", 1, {}, "few rounds and 2n(p-1)/p bytes"}
               : Choice{"circulant", 1, {}, "few rounds and 2n(p-1)/p bytes at any p"};
  }
  const std::size_t slices = std::clamp<std::size_t>(bytes / kSlice, 1, kMostSlices);
  return {"ring", slices, {}, "2n(p-1)/p bytes between neighbours only, in overlapping slices"};
}

Choice choose_schedule(Collective collective, std::size_t bytes, int size,
                       const Topology& topology) {
  switch (collective) {
    case Collective::kAllreduce:
      return choose_allreduce(bytes, size, topology);
    case Collective::kReduceScatter:
      return {bytes <= kLarge ? "circulant" : "ring", 1, {}, "few rounds, then neighbours only"};
    case Collective::kAllgather:
      return {bytes <= kLarge ? "circulant" : "ring", 1, {}, "few rounds, then neighbours only"};
    case Collective::kBcast:
      break;
  }
  return {bytes <= kSmall ? "binomial" : "scatter_allgather", 1, {}, "few rounds, then few bytes"};
}

}  // namespace

Topology Topology::of(std::vector<int> host_of) {
  Topology topology;
  topology.host_of = std::move(host_of);
  const auto size = topology.host_of.size();
  topology.hosts = size == 0 ? 0 : 1 + *std::ranges::max_element(topology.host_of);
  if (topology.hosts == 0 || size % static_cast<std::size_t>(topology.hosts) != 0) return topology;
  const std::size_t local = size / static_cast<std::size_t>(topology.hosts);
  for (std::size_t rank = 0; rank < size; ++rank) {
    if (topology.host_of[rank] != static_cast<int>(rank / local)) return topology;
  }
  topology.local = static_cast<int>(local);
  return topology;
}

std::uint64_t hash_of(const Choice& choice) {
  return mix(mix(1, std::string_view(choice.name)), choice.slices) | 1;
}

Choice choose(const Asked& asked, int size, const Topology& topology) {
  if (size == 1) return {"copy", 1, {}, "one rank"};
  if (asked.on_node) return {"node", 1, {}, "all ranks share memory"};
  Choice choice;
  if (asked.plan.empty()) {
    choice = choose_schedule(asked.collective, asked.bytes, size, topology);
  } else {
    choice = {std::string(asked.plan), 1, {}, "as asked"};
    choice.parameters.local = topology.local;
  }
  choice.parameters.root = asked.root;
  if (asked.slices > 0) choice.slices = asked.slices;
  return choice;
}

std::optional<Choice> specification_of_node(Collective collective, std::size_t bytes, int size) {
  if (collective == Collective::kBcast) return std::nullopt;
  Choice choice{"direct", 1, {}, "each rank reduces a part of its own"};
  if (collective == Collective::kAllgather) choice.reason = "each rank reads what the others have";
  if (collective == Collective::kAllreduce &&
      NodeOptions().reduces_everything(bytes, static_cast<std::size_t>(size))) {
    choice = {"recursive_multiplying", 1, {}, "each rank reads all vectors and reduces all of it"};
    choice.parameters.k = size;
  }
  return choice;
}

}  // namespace gradred
