#include "comm/set_up/host_calls.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/signature.h"
#include "engine/execution.h"
#include "schedule/algorithms.h"

namespace gradred {

HostCalls::HostCalls(SetUpCalls& calls, MpiTransport& transport, std::vector<int> members,
                     const RankNames& names)
    : calls_(calls),
      transport_(transport),
      members_(std::move(members)),
      place_(static_cast<int>(std::ranges::find(members_, calls.rank()) - members_.begin())),
      names_(names.among(members_)) {}

void HostCalls::barrier() {
  std::vector<std::byte> all(members_.size());
  allgather(all.data(), 1, all.data());
}

void HostCalls::allgather(const void* mine, std::size_t bytes, void* all) {
  std::memmove(static_cast<std::byte*>(all) + static_cast<std::size_t>(place_) * bytes, mine,
               bytes);
  const Schedule schedule =
      embed(make_schedule(Kind::kAllgather, "direct", place_, size()), members_, calls_.size());
  Execution execution(schedule, transport_.open(Memory()), members_.size() * bytes, Reduction{});
  execution.start(all, nullptr, static_cast<std::uint32_t>(transport_.tags().tag(0)),
                  make_signature(Kind::kAllgather, Op::kSum, DType::kUInt8, bytes));
  calls_.wait([&] { return execution.advance(); });
}

}  // namespace gradred
