// Family: the plans of one implementation, and how it carries them out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/used_transport.h"
#include "calls/call.h"
#include "calls/parts.h"
#include "plan/plan.h"

namespace gradred {

class StartedOperation;  // engine/started.h

// How an operation takes the arrays of a call.
enum class ArrayAccess : std::uint8_t {
  kDirect,       // reads and writes them where they lie
  kStreamOrder,  // the same, and gives its work to the stream in whose order the call is
  // The others work on copies in host memory (staged.h):
  kCopied,        // the operation may be made before the input is there
  kCopiedBefore,  // the input must be there before the operation is made
  // If Call::may_flow(), it reads the input and writes the result in order, from the beginning to
  // the end, so that the copies can be made piece by piece beside it (Call::flow).
  kPieces,
  kDevices,  // the same; and it works on devices if all ranks have arrays there (Flow::device)
};
inline bool works_on_copies(ArrayAccess access) { return access > ArrayAccess::kStreamOrder; }

// To add a family, implement this class in a file and add a row to families/families.cc.
class Family : public PlanSource {
 public:
  virtual std::string_view about() const = 0;
  // The transport of its data, for reports: memory, messages, mpi (the MPI's own calls), library or
  // none.
  virtual std::string_view medium() const = 0;
  // The name of a whole call in a timeline; nullptr: each of its messages is an event instead.
  virtual const char* traced_as() const = 0;
  // How the data of its calls are moved. If that is unknown here, the node group knows it.
  virtual UsedTransport used_transport() const { return UsedTransport::kMessages; }
  // Whether the ranks send each other messages, for which the MPI must be called between the start
  // and the end of an operation.
  virtual bool sends(const Place& /*place*/) const { return false; }
  // This is not part of the choice, since ranks may differ in it.
  virtual ArrayAccess access(const Call& call) const = 0;
  // Throws UsageError for a call that the plan cannot carry out for a reason that the choice does
  // not consider, for example a type that the MPI lacks.
  virtual void check(const Parts& /*parts*/, const Call& /*call*/) const {}
  // The call itself, blocking, and as an operation in flight. The plan must have been chosen for
  // the communicator's Place.
  virtual void run(const Parts& parts, const Plan& plan, const Call& call,
                   WaitHook& hook) const = 0;
  virtual std::shared_ptr<StartedOperation> operation(const Parts& parts, const Plan& plan,
                                                      const Call& call) const = 0;

 protected:
  // For families that can use arrays only `if_readable`, and only while no stream waits.
  static ArrayAccess direct_or(ArrayAccess otherwise, const Call& call, bool if_readable) {
    return if_readable && call.stream_order() == nullptr ? ArrayAccess::kDirect : otherwise;
  }
};
using Families = std::span<const Family* const>;

// The family that carries a plan out. All sources of plans are families (families/families.h).
inline const Family& family_of(const Plan& plan) {
  return static_cast<const Family&>(*plan.source);
}

}  // namespace gradred
