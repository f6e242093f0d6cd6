// Ranks whose cores share a cache, found by the time that a flag takes between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "node/agreement/node_agreement.h"

namespace gradred {

// Numbers groups from 0 in the order of their first ranks; 0 for all if one has a single rank.
std::vector<std::uint32_t> worthwhile_groups(std::span<const std::uint32_t> groups);

// The group of each rank, counted from 0 in the order of their first ranks; 0 for all: there are
// none. By single linkage: two ranks belong together if a chain of fast pairs joins them. A pair is
// fast if its latency lies below the widest gap, as a ratio, in the latencies at which chains join.
// The gap must be at least kLeastGap and each group must have two ranks; otherwise there are none.
// `latencies`: that of ranks a and b is at a * ranks + b, and at b * ranks + a. If a rank's own
// place has kUnmeasured, its time was over before it had measured its pairs, and there are no
// groups.
std::vector<std::uint32_t> linked_ranks(std::span<const float> latencies, std::size_t ranks);
inline constexpr float kLeastGap = 1.5F;
inline constexpr float kUnmeasured = std::numeric_limits<float>::infinity();

// Within an operation, on this rank and a peer at the same time: the nanoseconds that a flag takes
// between them, as the mean of `turns` round trips. `from`: their flags, which are equal.
double flag_latency_ns(NodeAgreement& group, std::size_t peer, std::uint64_t from, unsigned turns);
inline constexpr std::uint64_t kMeasuringNs = 50'000'000;
// Collective: all pairs of ranks measure, as many at a time as can. Rank 0 finds the groups, and
// all ranks return what it has found. Of at most kMostMeasured ranks, each with a core of its own.
// If a rank has not measured its pairs after `limit_ns`, there are no groups: on a busy host each
// turn of a flag may take as long as another program keeps a core.
std::vector<std::uint32_t> measured_cache_groups(NodeAgreement& group,
                                                 std::uint64_t limit_ns = kMeasuringNs);
inline constexpr std::size_t kLeastMeasured = 8, kMostMeasured = kShortSlot / sizeof(float);

}  // namespace gradred
