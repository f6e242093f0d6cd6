// A collective call, or part of one, that the ranks of a host carry out in shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/started.h"
#include "node/execution.h"

namespace gradred {

class NodePath;

// Operations of a communicator run in the order in which they were started: each announces itself
// once all before it are finished, at the latest when somebody advances it or one behind it.
class NodeOperation final : public StartedOperation {
 public:
  // The ranks carry out the call.
  NodeOperation(std::shared_ptr<NodePath> path, const Call& call);
  // Whatever start_alone() is given.
  explicit NodeOperation(NodePath& path);
  // Nothing moves: they agree on this, and the operation over messages that follows has a number.
  NodeOperation(std::shared_ptr<NodePath> path, const Signature& agreement);
  // This rank's arguments were refused.
  NodeOperation(std::shared_ptr<NodePath> path, std::string_view refusal);

  // For a thread that has the group for itself, as in a blocking call, and alone knows of this:
  // carries the call out as far as one look at the peers does.
  enum class Alone : std::uint8_t {
    kTooLong,    // nothing has happened: it takes more looks
    kEndedWell,  // it can be used again
    kGoesOn,     // announced, or failed: it is an operation like others after go_on()
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
  Went went() const override { return went_; }
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
  std::shared_ptr<NodePath> alive_;  // with its communicator; null while its user holds that
  NodeGroup& group_;
  const Purpose purpose_;
  Call call_;
  std::vector<std::byte> scaled_;  // the input times a factor
  std::size_t bytes_ = 0;
  NodeExecution execution_;
  bool given_ = false;  // to the execution: its input is there
  bool begun_ = false;
  Went went_ = Went::kUnknown;
  std::uint64_t number_ = 0;
};

// In line behind those that were started before.
std::shared_ptr<NodeOperation> enqueue(const std::shared_ptr<NodePath>& path, const Call& call);
std::shared_ptr<NodeOperation> enqueue(const std::shared_ptr<NodePath>& path,
                                       const Signature& agreement);
std::shared_ptr<NodeOperation> enqueue(const std::shared_ptr<NodePath>& path,
                                       std::string_view refusal);

}  // namespace gradred
