// Calls as the ranks of a host carry them out, and how a rank waits for them there; what the other
// ways of carrying out a call cannot do.
#pragma once

#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "liveness/watchdog.h"

namespace gradred {

// MPI counts are ints: longer vectors go in pieces, which an elementwise operation does not notice.
inline constexpr std::size_t kLargestMpiCount = std::size_t{1} << 30;

inline constexpr std::size_t kLongWorkBytes = std::size_t{32} << 10;

// Who keeps a rank waiting on the node: for Watchdog.
struct AboutNode {
  const NodeGroup& node;

  WaitRecord record() const { return node.wait_record(); }
  std::string waiter() const { return node.own_name(); }
  std::string waits_for() const { return node.missing(); }
  bool reports() const { return node.is_first_to_wait(); }
};

// What a rank does while it waits for shared memory: MPI's progress rule holds.
class NodePoll final : public Poll {
 public:
  NodePoll(Communicator& comm, WaitHook& hook) : comm_(comm), hook_(hook) {}
  void poll() override;

 private:
  Communicator& comm_;
  WaitHook& hook_;
  Watchdog watchdog_;
};

// Why start() leaves calls to the MPI.
inline constexpr const char* kLeftToMpi =
    "until a blocking call on the communicator has set up what gradred needs, or where the ranks "
    "let no thread drive, the MPI carries out non-blocking calls";

// Why a communicator has none of gradred's own messages.
inline constexpr const char* kNoneLeft =
    "the MPI has no communicators left for gradred to use, and without one of its own it cannot "
    "carry out the plan that is asked for: free communicators that are not used any more";

// Why a communicator that shrink() or connect() has made cannot do what takes the MPI.
inline constexpr std::string_view kMemoryOnly =
    "this communicator has shared memory only, and the MPI knows nothing of it. Use types and "
    "operations of gradred's own, and no plan but 'node'.";

// The call as the ranks of a host carry it out, but for factors.
NodeCall node_call(const Call& call);

// The inputs times the factor, in `storage`.
const void* scaled_input(const Call& call, int size, std::vector<std::byte>& storage);

}  // namespace gradred
