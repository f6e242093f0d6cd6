#include "families/families.h"

#include <vector>

#include "families/devices/family_library.h"
#include "families/memory/family_copy.h"
#include "families/memory/family_node.h"
#include "families/messages/family_hierarchical.h"
#include "families/messages/family_schedule.h"
#include "families/mpi/family_mpi.h"

namespace gradred {

// If two plans cost the same, the selector takes the first in this order.
Families plan_families() {
  static const std::vector<const Family*> families = [] {
    std::vector<const Family*> all = {&copy_family(), &node_family(), &hierarchical_family(),
                                      &schedule_family(), &mpi_family()};
    const Families libraries = library_families();
    all.insert(all.end(), libraries.begin(), libraries.end());
    return all;
  }();
  return families;
}

PlanSources plan_sources() {
  static const std::vector<const PlanSource*> sources(plan_families().begin(),
                                                      plan_families().end());
  return sources;
}

}  // namespace gradred
