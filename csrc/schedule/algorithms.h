// Every algorithm by name: the one table from which listings, Python and tests are derived.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "schedule/combinators.h"
#include "schedule/schedule.h"

namespace gradred {

struct Parameters {
  int root = 0;                 // broadcasts
  int k = 4;                    // recursive_multiplying: ranks that exchange at once
  int local = 0;                // hierarchical: ranks of each group, or
  std::vector<int> groups{};    // the group of each rank; one of both must be given
  int leaders = 0;              // hierarchical: 1: one rank of each group crosses
  std::string inside = "ring";  // hierarchical allreduce: reduce_scatter and allgather by name
  std::string across = "recursive_doubling";  // hierarchical allreduce: allreduce by name
};

struct Algorithm {
  std::string_view name;
  Collective collective;
  Schedule (*generate)(int rank, int size, const Parameters& parameters);
  std::string_view parameters;   // the names it takes, separated by spaces
  std::string_view restriction;  // which sizes it serves, in words
  std::string_view about;
  std::string_view cost;  // see generators.h
  std::string_view paper;
  // Whether it adds up each element in one order of ranks, wherever that stands and however long
  // the vector is: in that of all others of its collective of which this is said.
  bool one_order = false;
};

const std::vector<Algorithm>& algorithms();

// The groups of a hierarchical schedule. UsageError where the parameters describe none.
Lanes lanes_of(int size, const Parameters& parameters);
// What of it crosses between them.
Schedule make_across_groups(Collective collective, int rank, int size,
                            const Parameters& parameters);

// "allreduce", "reduce_scatter", "allgather", "bcast".
std::string_view name_of(Collective collective);
Collective collective_named(std::string_view name);  // UsageError lists the names

// UsageError lists the names of that collective and the nearest one.
const Algorithm& find_algorithm(Collective collective, std::string_view name);

// One rank's schedule; UsageError for unknown names and for sizes or parameters that are not
// served.
Schedule make_schedule(Collective collective, std::string_view name, int rank, int size,
                       const Parameters& parameters = {});

}  // namespace gradred
