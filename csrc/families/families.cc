#include "families/families.h"

#include <algorithm>
#include <array>

namespace gradred {
namespace {

constexpr std::size_t kCount = 8;

// If two plans cost the same, the selector takes the first in this order.
const std::array<const Family*, kCount>& table() {
  static const std::array<const Family*, kCount> table = {
      &copy_family(), &node_family(), &hierarchical_family(), &schedule_family(),
      &mpi_family(),  &nccl_family(), &one_shot_family(),     &two_shot_family()};
  return table;
}

}  // namespace

Families plan_families() { return table(); }

PlanSources plan_sources() {
  static const auto sources = [] {
    std::array<const PlanSource*, kCount> all{};
    std::ranges::copy(table(), all.begin());
    return all;
  }();
  return sources;
}

}  // namespace gradred
