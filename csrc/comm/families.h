// Every family of plans. The selector, `gradred explain`, `gradred bench --plan all` and the
// documents all read this one table.
#pragma once

#include "plan/plan.h"

namespace gradred {

Families plan_families();

inline constexpr std::string_view kHierarchical = "hierarchical";

// The most slices of a vector that moves by messages alone. Long messages are cut into pieces
// anyway, and ranks that share cores lose time with more slices.
inline constexpr std::size_t kMostSlices = 2;

// The plan by which ranks that do not all share memory compare their calls.
const char* plan_of_agreements(const Place& place);

const Family& copy_family();          // family_copy.cc
const Family& node_family();          // family_node.cc
const Family& hierarchical_family();  // family_hierarchical.cc
const Family& schedule_family();      // family_schedule.cc
const Family& mpi_family();           // family_mpi.cc
const Family& nccl_family();          // family_library.cc, like the two below
const Family& one_shot_family();
const Family& two_shot_family();

// Whether the MPI takes addresses in device memory, as the settings or the MPI itself say.
bool mpi_reads_devices();  // family_mpi.cc

}  // namespace gradred
