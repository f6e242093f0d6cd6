#include "comm/set_up/host_groups.h"

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "comm/set_up/host_calls.h"
#include "comm/set_up/sharing.h"
#include "engine/notices/registry.h"

namespace gradred {
std::unique_ptr<NodeGroup> make_host_group(SetUpCalls& calls, MpiTransport& transport,
                                           const Topology& topology, const RankNames& names,
                                           const NodeOptions& options, std::string& why_not) {
  std::vector<int> members;
  for (int rank = 0; rank < calls.size(); ++rank) {
    const auto host_of = [&](int one) { return topology.host_of[static_cast<std::size_t>(one)]; };
    if (host_of(rank) == host_of(calls.rank())) members.push_back(rank);
  }
  std::unique_ptr<NodeGroup> group;
  std::string reason;
  if (members.size() > 1) {
    HostCalls host(calls, transport, std::move(members), names);
    group = make_group(host, options, reason);
  }
  struct Reason {
    char text[200] = {};
  } mine;
  set_text(mine.text, reason);
  std::vector<Reason> all(static_cast<std::size_t>(calls.size()));
  calls.allgather(&mine, sizeof mine, all.data());
  const auto lacks = [](const Reason& one) { return one.text[0] != '\0'; };
  if (const auto first = std::ranges::find_if(all, lacks); first != all.end()) {
    why_not = first->text;
    return nullptr;
  }
  if (group != nullptr) Registry::get().add_pool(group->pool());
  return group;
}

}  // namespace gradred
