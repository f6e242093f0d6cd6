#include "families/messages/host_parts.h"

#include "schedule/groups.h"

namespace gradred {
namespace {

// The parts are cut as the schedule cuts them.
HostParts lanes_on_host(const Lanes& lanes, int ranks, Partition pieces, std::size_t chunks) {
  HostParts parts;
  const std::size_t slice = chunks / static_cast<std::size_t>(lanes.count);
  for (std::size_t piece = 0; piece < pieces.chunks; ++piece) {
    const Partition cut{pieces.length(piece), chunks};
    std::vector<std::size_t>& begins = parts.begins.emplace_back();
    for (int place = 0; place <= ranks; ++place) {
      begins.push_back(cut.begin(static_cast<std::size_t>(lanes.first(place, ranks)) * slice));
    }
  }
  return parts;
}

HostParts blocks_on_host(const Lanes& lanes, std::size_t group, std::size_t block) {
  HostParts parts;
  std::vector<std::size_t>& begins = parts.begins.emplace_back(1, 0);
  for (const int member : lanes.groups[group]) {
    for (int one = 0; one < lanes.size(); ++one) {
      if (carrier_of_block(lanes, one, group) == member) {
        parts.order.push_back(static_cast<std::uint32_t>(one));
      }
    }
    begins.push_back(parts.order.size() * block);
  }
  return parts;
}

}  // namespace

HostParts host_parts(const Call& call, const Plan& plan, int rank, int size, Partition pieces,
                     std::size_t chunks, bool led) {
  const Lanes lanes = lanes_of(size, plan.parameters);
  const auto [group, place, ranks] = lanes.spot_of(rank);
  if (!has_blocks(call.kind)) return lanes_on_host(lanes, ranks, pieces, chunks);
  if (!led) return blocks_on_host(lanes, group, call.count);
  HostParts parts;
  std::vector<std::size_t>& begins = parts.begins.emplace_back();
  for (const int member : lanes.groups[group]) {
    begins.push_back(static_cast<std::size_t>(member) * call.count);
  }
  return parts;
}

int place_on_host(const Topology& topology, int rank, int other) {
  const auto host = [&](int one) { return topology.host_of[static_cast<std::size_t>(one)]; };
  if (host(rank) != host(other)) return -1;
  int place = 0;
  for (int one = 0; one < other; ++one) place += host(one) == host(rank) ? 1 : 0;
  return place;
}

}  // namespace gradred
