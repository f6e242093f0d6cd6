// Plan: how one call is carried out. The selector chooses among the plans of all sources.
//
// A choice depends on two things only: what the call asks for (Question) and where the ranks of the
// communicator are (Place). Both are the same on all ranks, so all ranks make the same choice
// without a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/costs.h"
#include "schedule/algorithms.h"
#include "schedule/schedule.h"
#include "schedule/topology.h"

namespace gradred {

class PlanSource;

struct Place {
  int size = 1;
  Topology topology{};
  std::string why_no_memory{};  // empty if all ranks share memory
  // If there are several hosts: empty if the ranks of each host share memory.
  std::string why_no_host_memory = "no host has been looked at";
  std::string why_no_messages{};   // empty if the ranks exchange messages of gradred's own
  std::string why_no_mpi{};        // empty if the MPI may carry out calls
  std::shared_ptr<Costs> costs{};  // of schedules over messages

  // Whether there are several hosts and the ranks of each share memory.
  bool hosts_share_memory() const { return topology.hosts > 1 && why_no_host_memory.empty(); }
  // Whether there are several hosts and values are summed in each host's memory before they cross.
  bool sums_on_hosts() const { return hosts_share_memory() && topology.hosts < size; }
};

struct Question {
  Kind collective = Kind::kAllreduce;
  std::size_t bytes = 0;          // of the vector, or of one rank's block if has_blocks(collective)
  std::string_view plan{};        // the plan's name; empty: any plan
  const Schedule* own = nullptr;  // a schedule that the caller gives, or nullptr
  std::size_t slices = 0;         // 0: any number
  // The limit that the tags of one operation set.
  std::size_t most_slices = ~std::size_t{0};
  int root = 0;  // if has_root(collective)
  // The plan mpi may be chosen though the call does not name it: the MPI's own call does what
  // gradred promises, and the caller waits for it.
  bool mpi_may_carry = false;
  // Unless the call names a plan: choose only plans that reduce each element in the same order of
  // ranks (Plan::one_order).
  bool one_order = false;
  // A form in which data must cross between hosts, or kAuto: those that cost much less may. Calls
  // of one host have kNone.
  Wire wire = Wire::kNone;

  // Bytes of the whole vector that a schedule cuts into chunks.
  std::size_t vector_bytes(int size) const { return bytes * vector_counts(collective, size); }
};

// A schedule that describes what a plan does.
struct Specification {
  std::string algorithm{};
  Parameters parameters{};
  std::string reason{};
};

struct Plan {
  const PlanSource* source = nullptr;
  std::string name{};
  std::string label{};     // its name in measured figures; empty: it was not measured
  std::size_t slices = 1;  // executions of the schedule that are in flight at once
  Parameters parameters{};
  std::string reason{};
  // No value if no schedule of gradred's does the same, for example a broadcast that every rank
  // reads from the root, or a call of the MPI.
  std::optional<Specification> specification{};
  // Whether the plan reduces each element in the order of ranks that all plans with this flag
  // share, for calls of this kind at this place. Results of such plans do not depend on the
  // vector's length.
  bool one_order = false;
  // Whether it costs less than any other plan for every call at this place.
  bool for_every_call = false;
  double seconds = 0;            // predicted by the cost model
  std::uint64_t known_hash = 0;  // set by choose()

  std::uint64_t hash() const;  // of everything on which ranks must agree; never 0
};

// Where plans come from: it knows which calls they can serve, and what they cost.
class PlanSource {
 public:
  virtual ~PlanSource() = default;
  virtual std::string_view name() const = 0;
  // The plans that a call may ask for by name.
  virtual std::vector<std::string> plans(Kind collective) const = 0;
  // Why none of its plans can serve the call; nullopt if they can.
  virtual std::optional<std::string> why_not(const Question& question,
                                             const Place& place) const = 0;
  // The plans for a call that names none, or the plan that it names, with their costs. Only to be
  // called if why_not() returned nullopt. If a source offers nothing unless it is named, its file
  // says why.
  virtual std::vector<Plan> offers(const Question& question, const Place& place) const = 0;
};
using PlanSources = std::span<const PlanSource* const>;

}  // namespace gradred
