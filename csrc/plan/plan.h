// Plan: how one call is carried out. Family: the plans of one implementation. The selector chooses
// among the plans of all families.
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

#include "base/went.h"
#include "memory/memory.h"
#include "plan/costs.h"
#include "schedule/algorithms.h"
#include "schedule/schedule.h"
#include "schedule/topology.h"

namespace gradred {

struct Call;         // comm/call.h
class Communicator;  // comm/communicator.h
class Family;
class StartedOperation;  // comm/started.h
class WaitHook;          // comm/call.h

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
  Collective collective = Collective::kAllreduce;
  std::size_t bytes = 0;    // of the vector; for reduce_scatter and allgather, of one rank's block
  std::string_view plan{};  // the plan's name; empty: any plan
  const Schedule* own = nullptr;  // a schedule that the caller gives, or nullptr
  std::size_t slices = 0;         // 0: any number
  // The limit that the tags of one operation set.
  std::size_t most_slices = ~std::size_t{0};
  int root = 0;  // of a broadcast
  // The plan mpi may be chosen though the call does not name it: the MPI's own call does what
  // gradred promises, and the caller waits for it.
  bool mpi_may_carry = false;
  // Unless the call names a plan: choose only plans that reduce each element in the same order of
  // ranks (Plan::one_order).
  bool one_order = false;

  // Bytes of the whole vector that a schedule cuts into chunks.
  std::size_t vector_bytes(int size) const {
    const bool blocks =
        collective == Collective::kReduceScatter || collective == Collective::kAllgather;
    return bytes * (blocks ? static_cast<std::size_t>(size) : 1);
  }
};

// A schedule that describes what a plan does.
struct Specification {
  std::string algorithm{};
  Parameters parameters{};
  std::string reason{};
};

struct Plan {
  const Family* family = nullptr;
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
  double seconds = 0;            // predicted by the cost model
  std::uint64_t known_hash = 0;  // set by choose()

  std::uint64_t hash() const;  // of everything on which ranks must agree; never 0
};

// One implementation of calls. To add a family, implement this class in a file and add a row to
// comm/families.cc.
class Family {
 public:
  virtual ~Family() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view about() const = 0;
  // The transport of its data, for reports: memory, messages, mpi (the MPI's own calls), library or
  // none.
  virtual std::string_view medium() const = 0;
  // The name of a whole call in a timeline; nullptr: each of its messages is an event instead.
  virtual const char* traced_as() const = 0;
  // How the data of its calls are moved. If that is unknown here, the node group knows it.
  virtual Went went() const { return Went::kMessages; }
  // Whether the ranks send each other messages, for which the MPI must be called between the start
  // and the end of an operation.
  virtual bool sends(const Place& /*place*/) const { return false; }
  // Whether a call is nothing but the MPI's own collective call, so that there is nothing to
  // compare with it.
  virtual bool leaves_to_mpi() const { return false; }
  // The plans that a call may ask for by name.
  virtual std::vector<std::string> plans(Collective collective) const = 0;
  // Why none of its plans can serve the call; nullopt if they can.
  virtual std::optional<std::string> why_not(const Question& question,
                                             const Place& place) const = 0;
  // The plans for a call that names none, or the plan that it names, with their costs. Only to be
  // called if why_not() returned nullopt. If a family offers nothing unless it is named, its file
  // says why.
  virtual std::vector<Plan> offers(const Question& question, const Place& place) const = 0;

  // Whether the operation can use the caller's buffers where they are; else they are staged in host
  // memory. This is not part of the choice, since ranks may differ in it. A staged call keeps the
  // order of a stream only if the family keeps_streams().
  virtual bool reads(const Call& call) const;
  // Whether this is another library's or the MPI's own allreduce that takes arrays in devices'
  // memory on all ranks, so that it is to be compared with gradred's. `mpi_reads`: whether the MPI
  // of every rank reads devices' memory.
  virtual bool rivals_on_devices(bool /*mpi_reads*/) const { return false; }
  // Whether its operations give their work to the stream in whose order the call is.
  virtual bool keeps_streams() const { return false; }
  // Whether its operations read the input of such a call and write the result in order, from the
  // beginning to the end, so that the data can pass in pieces (Call::flow).
  virtual bool flows(const Call& /*call*/) const { return false; }
  // Whether its operations work on arrays in devices' memory if all ranks have such (Flow::device).
  virtual bool shares_devices() const { return false; }
  // Throws UsageError for a call that the plan cannot carry out for a reason that the choice does
  // not consider, for example a type that the MPI lacks.
  virtual void check(Communicator& /*comm*/, const Call& /*call*/) const {}
  // The call itself, blocking, and as an operation in flight. The plan must have been chosen for
  // the communicator's Place.
  virtual void run(Communicator& comm, const Plan& plan, const Call& call,
                   WaitHook& hook) const = 0;
  virtual std::shared_ptr<StartedOperation> operation(Communicator& comm, const Plan& plan,
                                                      const Call& call) const = 0;
};
using Families = std::span<const Family* const>;

}  // namespace gradred
