// Every family of plans. The selector, `gradred explain`, `gradred bench --plan all` and the
// documents all read this one table.
#pragma once

#include "calls/family.h"

namespace gradred {

Families plan_families();
PlanSources plan_sources();  // the same, as the selector takes them

// The most slices of a vector that moves by messages alone. Long messages are cut into pieces
// anyway, and ranks that share cores lose time with more slices.
inline constexpr std::size_t kMostSlices = 2;

const Family& copy_family();          // family_copy.cc
const Family& node_family();          // family_node.cc
const Family& hierarchical_family();  // family_hierarchical.cc
const Family& schedule_family();      // family_schedule.cc
const Family& mpi_family();           // family_mpi.cc
Families library_families();          // family_library.cc

}  // namespace gradred
