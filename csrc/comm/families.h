// Every family of plans: the one table that the selector, `gradred explain`, `gradred bench --plan
// all` and the documents read.
#pragma once

#include "plan/plan.h"

namespace gradred {

Families plan_families();

inline constexpr std::string_view kHierarchical = "hierarchical";

// Slices of a vector that is in flight by messages alone. They go in pieces anyway, and ranks that
// share cores lose by more.
inline constexpr std::size_t kMostSlices = 2;

// By which ranks that do not all share memory compare what they are about to do.
const char* plan_of_agreements(const Place& place);

const Family& copy_family();          // family_copy.cc
const Family& node_family();          // family_node.cc
const Family& hierarchical_family();  // family_hierarchical.cc
const Family& schedule_family();      // family_schedule.cc
const Family& mpi_family();           // family_mpi.cc
const Family& nccl_family();          // family_library.cc, and so are the two below
const Family& one_shot_family();
const Family& two_shot_family();

// Whether the MPI takes addresses in devices' memory. It answers without looking at one.
bool mpi_reads_devices();  // family_mpi.cc

}  // namespace gradred
