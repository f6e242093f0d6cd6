// An operation of a node group in flight, in steps that never block.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "node/group.h"
#include "node/steps.h"
#include "node/ways.h"

namespace gradred {

// One at a time per group, and no blocking operation of the group meanwhile; the peers may carry
// out the same operation by NodeGroup::run(). The group must outlive it.
class NodeExecution {
 public:
  explicit NodeExecution(NodeGroup& group) : group_(group), ways_(group.ways()) {}
  NodeExecution(const NodeExecution&) = delete;
  NodeExecution& operator=(const NodeExecution&) = delete;

  // What advance() carries out from now on. What `call` points to must live until then.
  void start(const NodeCall& call);
  // Or: this rank takes no part, as in NodeGroup::abort(). The peers throw UsageError with `text`.
  void start_refusal(std::string text);
  // Whether it takes but one look at the peers, as far as that is known before it has begun.
  bool is_short() const { return refusal_ || ways_.path_of(call_) != DataPath::kChunks; }
  // Of a led operation on the rank that leads: advance() has said true, and recv holds the sums.
  // The others wait for pass_on(), which gives them what is there now.
  bool leads() const { return state_ == State::kLeads; }
  void pass_on();
  // The first part of advance(): announces it, unless an operation that this rank has refused has
  // to end before; then false.
  bool begin();
  // Goes on as far as possible without blocking; true at the end. Throws as NodeGroup::run() does,
  // and is over then.
  bool advance();
  // What has to come before advance() can go on, after it has said "not yet". Some 100 ms later it
  // should be called in any case: it looks whether the peers live.
  const Awaited& awaited() const { return awaited_; }
  StoodFor stands_for() const { return stands_for_; }  // where awaited() has no word
  // Peers may count on this rank from now on: to give the operation up fails the group.
  bool announced() const { return state_ > State::kLeads && state_ < State::kEnded; }
  // Whether it has been carried out in devices' memory. Else its result is at recv().
  bool ran_on_devices() const { return on_devices_; }
  void* recv() const { return call_.recv; }
  // Whether it is under way on this rank, which may lead it.
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
  bool await(const Awaited& awaited, StoodFor what = StoodFor::kLine);
  bool await_steps() { return await(steps_->awaited(), steps_->stands_for()); }
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
  std::uint64_t measured_from_ns_ = 0;  // of the steps; 0: another rank measures
  Awaited awaited_;
  StoodFor stands_for_ = StoodFor::kLine;
};

}  // namespace gradred
