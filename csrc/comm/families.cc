#include "comm/families.h"

#include <array>

#include "comm/call.h"

namespace gradred {

bool Family::reads(const Call& call) const { return call.on_host(); }

// If two plans cost the same, the selector takes the first in this order.
Families plan_families() {
  static const std::array<const Family*, 8> table = {
      &copy_family(), &node_family(), &hierarchical_family(), &schedule_family(),
      &mpi_family(),  &nccl_family(), &one_shot_family(),     &two_shot_family()};
  return table;
}

const char* plan_of_agreements(const Place& place) {
  return place.hosts_share_memory() ? kHierarchical.data() : "recursive_doubling";
}

}  // namespace gradred
