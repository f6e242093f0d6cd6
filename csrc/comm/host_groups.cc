#include "comm/host_groups.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/signature.h"
#include "base/text.h"
#include "comm/registry.h"
#include "comm/sharing.h"
#include "engine/execution.h"
#include "schedule/algorithms.h"

namespace gradred {
namespace {

// Among the ranks of this host alone, by messages: other hosts may need more or fewer of them. No
// operation of the communicator is in flight yet, so the tag of its first one is free.
class HostCalls final : public Bootstrap {
 public:
  HostCalls(SetUpCalls& calls, MpiTransport& transport, std::vector<int> members,
            const RankNames& names)
      : calls_(calls),
        transport_(transport),
        members_(std::move(members)),
        place_(static_cast<int>(std::ranges::find(members_, calls.rank()) - members_.begin())),
        names_(of_members(names)) {}

  int rank() const override { return place_; }
  int size() const override { return static_cast<int>(members_.size()); }
  RankNames names() const override { return names_; }
  void barrier() override {
    std::vector<std::byte> all(members_.size());
    allgather(all.data(), 1, all.data());
  }
  void allgather(const void* mine, std::size_t bytes, void* all) override {
    std::memmove(static_cast<std::byte*>(all) + static_cast<std::size_t>(place_) * bytes, mine,
                 bytes);
    const Schedule schedule = embed(make_schedule(Collective::kAllgather, "direct", place_, size()),
                                    members_, calls_.size());
    Execution execution(schedule, transport_.open(Memory()), members_.size() * bytes, Reduction{});
    execution.start(all, nullptr, static_cast<std::uint32_t>(transport_.tags().tag(0)),
                    make_signature(Kind::kAllgather, Op::kSum, DType::kUInt8, bytes));
    calls_.wait([&] { return execution.advance(); });
  }

 private:
  RankNames of_members(const RankNames& names) const {
    std::vector<int> world_ranks;
    for (const int member : members_) {
      if (names.world_ranks().empty()) break;
      world_ranks.push_back(names.world_ranks()[static_cast<std::size_t>(member)]);
    }
    return {std::move(world_ranks), members_};
  }

  SetUpCalls& calls_;
  MpiTransport& transport_;
  const std::vector<int> members_;
  const int place_;
  const RankNames names_;
};

// A part of memory that these ranks share already; nullptr: they share none.
std::unique_ptr<NodeGroup> part_of_a_pool(HostCalls& calls, const NodeOptions& options) {
  MemoryAgreement memory(calls.rank(), calls.names(), MemoryOffer::Wish::kShares, options);
  const MemoryOffer mine = memory.offer();
  std::vector<MemoryOffer> all(static_cast<std::size_t>(calls.size()));
  calls.allgather(&mine, sizeof mine, all.data());
  return memory.settle(all);
}

}  // namespace

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
    group = part_of_a_pool(host, options);
    if (group == nullptr) group = NodeGroup::create(host, options, reason);
  }
  struct Verdict {
    char reason[200] = {};
  } mine;
  set_text(mine.reason, reason);
  std::vector<Verdict> all(static_cast<std::size_t>(calls.size()));
  calls.allgather(&mine, sizeof mine, all.data());
  const auto lacks = [](const Verdict& one) { return one.reason[0] != '\0'; };
  if (const auto first = std::ranges::find_if(all, lacks); first != all.end()) {
    why_not = first->reason;
    return nullptr;
  }
  if (group != nullptr) Registry::get().add_pool(group->pool());
  return group;
}

}  // namespace gradred
