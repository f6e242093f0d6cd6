// Carries out one operation of a node group in steps that never block.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "node/group/group.h"
#include "node/paths/steps.h"
#include "node/paths/ways.h"

namespace gradred {

// A group has at most one execution at a time, and no blocking operation meanwhile. Peers may carry
// out the same operation by NodeGroup::run(). The caller keeps the group alive as long as the
// execution.
class NodeExecution {
 public:
  explicit NodeExecution(NodeGroup& group) : group_(group), ways_(group.ways()) {}
  NodeExecution(const NodeExecution&) = delete;
  NodeExecution& operator=(const NodeExecution&) = delete;

  // Sets the operation that advance() carries out. The caller keeps what `call` points to alive
  // until it ends.
  void start(const NodeCall& call);
  // The alternative to start(): this rank refuses the operation, as in NodeGroup::abort(). The
  // peers throw UsageError with `text`.
  void start_refusal(std::string text);
  // Returns whether the operation ends as soon as all peers have announced it. Before the operation
  // has begun, the answer may still change.
  bool is_short() const { return refusal_ || ways_.path_of(call_) != DataPath::kChunks; }
  // On the leader of an operation with NodeCall::led: advance() has returned true, and recv holds
  // the data of all ranks. The other ranks wait until the leader calls pass_on(), which sends them
  // the content of recv.
  bool leads() const { return state_ == State::kLeads; }
  void pass_on();
  // The first part of advance(): announces the operation. Returns false if this rank has refused an
  // earlier operation and that one has not ended yet.
  bool begin();
  // Advances the operation as far as possible without blocking. Returns true at its end. Throws as
  // NodeGroup::run() does, and the operation has ended then.
  bool advance();
  // What advance() waits for after it has returned false. The caller should call advance() again
  // after about 100 ms in any case, since advance() also checks whether the peers are alive.
  const Awaited& awaited() const { return awaited_; }
  // The reason for the wait if awaited().word is nullptr.
  WaitCause wait_cause() const { return wait_cause_; }
  // Peers may rely on this rank from now on: if it gives the operation up, the group fails.
  bool announced() const { return state_ > State::kLeads && state_ < State::kEnded; }
  // Whether the operation ran in device memory. If not, its result is at recv().
  bool ran_on_devices() const { return on_devices_; }
  void* recv() const { return call_.recv; }
  // Whether the operation has begun on this rank and has not ended.
  bool entered() const { return entered_; }

 private:
  enum class State : std::uint8_t { kStarted, kGathers, kLeads, kAnnounced, kInChunks, kEnded };

  template <class Body>
  bool guarded(Body&& body);
  bool go_on();
  bool enter();
  bool announce();
  bool gather();
  bool await_leader();
  bool in_chunks();
  void to_host();
  bool has_whole_input();
  bool await(const Awaited& awaited, WaitCause what = WaitCause::kLine);
  bool await_steps() { return await(steps_->awaited(), steps_->wait_cause()); }
  void end();

  NodeGroup& group_;
  NodeWays& ways_;
  NodeCall call_;
  std::optional<std::string> refusal_;
  DataPath path_ = DataPath::kInLine;
  State state_ = State::kEnded;
  bool entered_ = false;
  bool on_devices_ = false;
  std::optional<Steps> steps_;
  std::uint64_t measured_from_ns_ = 0;  // when the steps began; 0: this rank does not measure
  Awaited awaited_;
  WaitCause wait_cause_ = WaitCause::kLine;
};

}  // namespace gradred
