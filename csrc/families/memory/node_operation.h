// A collective call, or part of one, that the ranks of a host carry out in shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "calls/call.h"
#include "engine/started.h"
#include "node/group/node_execution.h"

namespace gradred {

class NodePath;

// Operations of a communicator run in the order in which they were started. Each announces itself
// once all before it have ended, at the latest when a thread advances it or one behind it.
class NodeOperation final : public StartedOperation {
 public:
  // The ranks carry out the call.
  NodeOperation(std::shared_ptr<NodePath> path, const Call& call);
  // For start_alone(), which gets the call.
  explicit NodeOperation(NodePath& path);
  // No data move: the ranks agree on `agreement`, and the operation over messages that follows gets
  // a number.
  NodeOperation(std::shared_ptr<NodePath> path, const Signature& agreement);
  // This rank's arguments were refused.
  NodeOperation(std::shared_ptr<NodePath> path, std::string_view refusal);

  // For a thread that has the group to itself, as in a blocking call, and alone knows this
  // operation. Carries the call out as far as one look at the peers allows.
  enum class Alone : std::uint8_t {
    kTooLong,    // nothing has happened: the call takes more looks
    kEndedWell,  // the operation can be used again
    kGoesOn,     // announced, or failed: after go_on() it is like other operations
  };
  Alone start_alone(const Call& call);
  void go_on(std::shared_ptr<NodePath> path, const Call& call);

  std::uint64_t number() const { return number_; }  // after an agreement

  std::string waiter() const override;
  std::string waits_for() const override;
  WaitRecord wait_record() const override;
  bool is_first_to_wait() const override;
  bool needs_no_mpi() const override;
  std::size_t bytes() const override { return bytes_; }
  UsedTransport used_transport() const override { return used_transport_; }
  bool spins() const override;

 protected:
  bool step() override;
  void give_up(const std::exception_ptr& reason) noexcept override;
  void withdraw() noexcept override;
  void on_end(bool well) noexcept override;

 private:
  enum class Purpose : std::uint8_t { kCall, kAgreement, kRefusal };

  NodeOperation(std::shared_ptr<NodePath> path, Purpose purpose);
  bool look_at_peers();
  bool finish_those_before();
  void start_call();
  bool begin();
  void take_result();
  void leave() noexcept;

  NodePath* const path_;
  // Keeps the path and its communicator alive; nullptr while the user of this object does so.
  std::shared_ptr<NodePath> alive_;
  NodeGroup& group_;
  const Purpose purpose_;
  Call call_;
  std::vector<std::byte> scaled_;  // the input times a factor
  std::size_t bytes_ = 0;
  NodeExecution execution_;
  bool given_ = false;  // the execution has the call, whose input is there
  bool begun_ = false;
  UsedTransport used_transport_ = UsedTransport::kUnknown;
  std::uint64_t number_ = 0;
};

// Adds an operation to the queue, behind those that were started before.
std::shared_ptr<NodeOperation> enqueue(const std::shared_ptr<NodePath>& path, const Call& call);
std::shared_ptr<NodeOperation> enqueue(const std::shared_ptr<NodePath>& path,
                                       const Signature& agreement);
std::shared_ptr<NodeOperation> enqueue(const std::shared_ptr<NodePath>& path,
                                       std::string_view refusal);

}  // namespace gradred
