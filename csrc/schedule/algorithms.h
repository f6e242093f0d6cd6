// The table of all algorithms by name, from which listings, the Python interface and tests are
// derived.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "schedule/combinators.h"
#include "schedule/schedule.h"

namespace gradred {

struct Parameters {
  int root = 0;  // of collectives that have one
  int k = 4;     // for recursive_multiplying: ranks that exchange at once
  // For hierarchical: either the number of ranks of each group, or the group of each rank.
  int local = 0;
  std::vector<int> groups{};
  int leaders = 0;  // for hierarchical; 1: only one rank of each group sends across groups
  // For hierarchical allreduce: the reduce_scatter and allgather inside groups, by name.
  std::string inside = "ring";
  // For hierarchical allreduce: the allreduce across groups, by name.
  std::string across = "recursive_doubling";
  // For hierarchical allreduce: a form in which data cross; `across` is then not used.
  Wire wire = Wire::kNone;
};

struct Algorithm {
  std::string_view name;
  Kind collective;
  Schedule (*generate)(int rank, int size, const Parameters& parameters);
  std::string_view parameters;   // names of the parameters that it takes, separated by spaces
  std::string_view restriction;  // which sizes it serves, as text
  std::string_view about;
  std::string_view cost;  // as a formula; see generators.h
  std::string_view paper;
  // Whether it reduces each element in one order of ranks, wherever the element is and however long
  // the vector is. All algorithms of a collective with this flag use the same order.
  bool one_order = false;
};

const std::vector<Algorithm>& algorithms();

// The groups of a hierarchical schedule. Throws UsageError if the parameters do not describe any.
Lanes lanes_of(int size, const Parameters& parameters);
// The part of a hierarchical schedule that crosses between groups.
Schedule make_across_groups(Kind collective, int rank, int size, const Parameters& parameters);

std::string_view schedules_name(Kind collective);  // KindInfo::schedules
Kind collective_named(std::string_view name);      // throws UsageError, which lists the names
bool has_algorithm(Kind collective, std::string_view name);

// Throws UsageError, which lists that collective's names and the nearest one.
const Algorithm& find_algorithm(Kind collective, std::string_view name);

// One rank's schedule. Throws UsageError for unknown names, and for sizes or parameters that the
// algorithm does not serve.
Schedule make_schedule(Kind collective, std::string_view name, int rank, int size,
                       const Parameters& parameters = {});

}  // namespace gradred
