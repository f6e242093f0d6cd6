// What carries out a call: a plan, and the families of plans among which the selector chooses.
//
// A choice depends on two things only, both the same on all ranks: what the call asks for
// (Question) and where the ranks of the communicator are (Place). So all ranks choose alike without
// a message.
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
  std::string why_no_memory{};  // empty: all ranks share memory
  // Of several hosts: empty where the ranks of each share memory.
  std::string why_no_host_memory = "no host has been looked at";
  std::string why_no_messages{};   // empty: the ranks exchange messages of gradred's own
  std::string why_no_mpi{};        // empty: the MPI may carry calls out
  std::shared_ptr<Costs> costs{};  // of schedules over messages

  // Whether, of several hosts, the ranks of each share memory.
  bool hosts_share_memory() const { return topology.hosts > 1 && why_no_host_memory.empty(); }
  // Whether, of several hosts, sums are made in the memory of each before they cross.
  bool sums_on_hosts() const { return hosts_share_memory() && topology.hosts < size; }
};

struct Question {
  Collective collective = Collective::kAllreduce;
  std::size_t bytes = 0;          // of the vector; of one rank's block (reduce_scatter, allgather)
  std::string_view plan{};        // by name; empty: any
  const Schedule* own = nullptr;  // a schedule of the caller's own
  std::size_t slices = 0;         // 0: any
  std::size_t most_slices = ~std::size_t{0};  // tags that an operation may take
  int root = 0;                               // of a broadcast
  // Unasked, too: its call does what gradred promises, and who calls waits.
  bool mpi_may_carry = false;
  // Unasked, only plans that add up each element in one order, all in the same (Plan::one_order).
  bool one_order = false;

  // Of the whole vector that a schedule cuts into chunks.
  std::size_t vector_bytes(int size) const {
    const bool blocks =
        collective == Collective::kReduceScatter || collective == Collective::kAllgather;
    return bytes * (blocks ? static_cast<std::size_t>(size) : 1);
  }
};

// The schedule that says what a plan does.
struct Specification {
  std::string algorithm{};
  Parameters parameters{};
  std::string reason{};
};

struct Plan {
  const Family* family = nullptr;
  std::string name{};
  std::string label{};     // what measured figures know it by; empty: nothing was measured of it
  std::size_t slices = 1;  // executions of the schedule in flight at once
  Parameters parameters{};
  std::string reason{};
  // None: no schedule of gradred's can do the same (a broadcast that every rank reads from the
  // root, a call of the MPI's).
  std::optional<Specification> specification{};
  // Whether it adds up each element in the order of ranks that all plans have, for calls of this
  // kind at this place, of which this is said: lengths then change no bits.
  bool one_order = false;
  double seconds = 0;            // as the cost model says
  std::uint64_t known_hash = 0;  // of one that choose() has given

  std::uint64_t hash() const;  // of what ranks must agree on; never 0
};

// A way of carrying out calls. A new one is a file that implements this, and a row in
// comm/families.cc.
class Family {
 public:
  virtual ~Family() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view about() const = 0;
  // Where its data go, for reports: memory, messages, mpi (its own calls), library or none.
  virtual std::string_view medium() const = 0;
  // What a timeline says of a whole call; null: each of its messages is told of.
  virtual const char* traced_as() const = 0;
  // By which way the data of its calls go; unknown: the node's group knows it.
  virtual Went went() const { return Went::kMessages; }
  // Whether the ranks send each other messages, which takes calls of the MPI between start and end.
  virtual bool sends(const Place& /*place*/) const { return false; }
  // Whether the MPI's own collective call is all that happens: nothing to be compared with it.
  virtual bool leaves_to_mpi() const { return false; }
  // The plans that a call may ask for by name.
  virtual std::vector<std::string> plans(Collective collective) const = 0;
  // Why none of them can serve the call; nullopt: they can.
  virtual std::optional<std::string> why_not(const Question& question,
                                             const Place& place) const = 0;
  // The plans for a call that names none, or the one that it names, with what they cost. Only where
  // why_not() has no objection. A family that offers nothing unless it is named has its reasons in
  // its file.
  virtual std::vector<Plan> offers(const Question& question, const Place& place) const = 0;

  // Whether the caller's buffers may lie where they do; else they are staged in host memory. No
  // part of the choice: ranks may differ in it. Such calls have no order of a stream but where the
  // family keeps_streams().
  virtual bool reads(const Call& call) const;
  // The same of the MPI's or a library's own allreduce, which then is to be compared with
  // gradred's: on all ranks, some of which may have an MPI that reads no devices' memory.
  virtual bool rivals_on_devices(bool /*mpi_reads*/) const { return false; }
  // Whether its operations give their work to the stream in whose order a call is.
  virtual bool keeps_streams() const { return false; }
  // Whether its operations read the input of such a call, and write the result, from beginning to
  // end (Call::flow).
  virtual bool flows(const Call& /*call*/) const { return false; }
  // Whether its operations take calls in devices' memory where all ranks have such (Flow::device).
  virtual bool shares_devices() const { return false; }
  // UsageError for a call that the plan cannot carry out for what no choice looks at (types that
  // the MPI lacks, for instance).
  virtual void check(Communicator& /*comm*/, const Call& /*call*/) const {}
  // Blocking, and in flight. Both on a communicator whose Place the plan was chosen for.
  virtual void run(Communicator& comm, const Plan& plan, const Call& call,
                   WaitHook& hook) const = 0;
  virtual std::shared_ptr<StartedOperation> operation(Communicator& comm, const Plan& plan,
                                                      const Call& call) const = 0;
};
using Families = std::span<const Family* const>;

}  // namespace gradred
