// Small parts of Communicator: how it waits, how a node group finds its ranks.
#pragma once

#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/patience.h"
#include "comm/watch.h"

namespace gradred {

inline constexpr const char* kFirstCallsDiffer =
    "the MPI could not duplicate the communicator, as when the ranks' first calls on it do not "
    "match: on some it blocks, on others it does not. Let all begin with a blocking call, or all "
    "with a non-blocking one";

inline constexpr std::size_t kLongWorkBytes = std::size_t{32} << 10;

// Who keeps a rank waiting on the node: for Watch.
struct AboutNode {
  const NodeGroup& node;

  std::string text(std::uint64_t waited) const;
  bool reports() const { return node.is_first_to_wait(); }
};

// The same of an operation that is advanced step by step.
struct AboutOperation {
  const Operation& operation;

  std::string text(std::uint64_t waited) const;
  bool reports() const { return operation.is_first_to_wait(); }
};

// What a rank does while it waits for shared memory: MPI's progress rule holds.
class NodePoll final : public Poll {
 public:
  NodePoll(Communicator& comm, WaitHook& hook) : comm_(comm), hook_(hook) {}
  void poll() override;

 private:
  Communicator& comm_;
  WaitHook& hook_;
  Watch watch_;
};

// Why a shrunk communicator cannot do what takes the MPI.
inline constexpr std::string_view kShrunk =
    "this communicator was shrunk: it has shared memory only, and the MPI knows nothing of it. Use "
    "types and operations of gradred's own, and no plan but 'node'.";

// The inputs times the factor, in `storage`.
const void* scaled_input(const Call& call, int size, std::vector<std::byte>& storage);

}  // namespace gradred
