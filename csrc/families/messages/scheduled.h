// A collective call that a schedule carries out: it puts the input into place, runs the executions,
// and puts the result into place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calls/call.h"
#include "engine/execution.h"
#include "families/messages/host_parts.h"
#include "memory/memory.h"

namespace gradred {

// Which calls a bound plan can serve.
struct BoundPlanKey {
  Kind collective = Kind::kAllreduce;
  std::string name;               // of the algorithm with its parameters
  const Schedule* own = nullptr;  // a schedule of the caller's own; then the name does not count
  std::size_t count = 0;          // elements of the work buffer
  std::size_t slices = 1;
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;
  bool in_place = true;  // the input is in the work buffer; else it is read where the caller has it
  Memory memory{};       // of the caller's buffers, and of all others

  bool operator==(const BoundPlanKey&) const = default;
};

// What one schedule needs to run on vectors of one length and type. It is cached and reused.
struct BoundPlan {
  explicit BoundPlan(BoundPlanKey made_for) : key(std::move(made_for)), stream(key.memory) {}

  BoundPlanKey key;
  std::shared_ptr<const Schedule> schedule;
  std::vector<std::unique_ptr<Execution>> slices;
  Allocation work;    // used if the caller's buffers cannot be the work buffer
  Span held{};        // the chunks of the vector for which `work` has room
  Stream stream;      // for what comes before the slices and after them
  HostParts parts{};  // for plan "hierarchical"

  std::size_t bytes_held() const {
    return work.bytes() + schedule->rounds.bytes_held() +
           schedule->scratch_slots * (key.count / schedule->chunks + 1) * size_of(key.dtype);
  }
};

// `schedule` is in place. The bound plan's schedule is in place only if the key is.
std::unique_ptr<BoundPlan> bind_plan(BoundPlanKey key, std::shared_ptr<const Schedule> schedule,
                                     Transport& transport);

// One call that a bound plan carries out.
class ScheduledCall {
 public:
  ScheduledCall(const Call& call, int rank, int size) : rank_(rank), size_(size) { bind(call); }
  // From now on the bound plan serves this call. No other call may be in flight.
  void bind(const Call& call) {
    call_ = call;
    signature_ = call.signature();
    phase_ = Phase::kNew;
  }

  const Call& call() const { return call_; }
  const Signature& signature() const { return signature_; }
  bool has_bound_plan() const { return bound_plan_ != nullptr; }
  void use(std::unique_ptr<BoundPlan> bound_plan) { bound_plan_ = std::move(bound_plan); }
  // The tags from this one on, one per slice, belong to this call.
  void use_tags(int first_tag) { first_tag_ = first_tag; }
  BoundPlan& bound_plan() const { return *bound_plan_; }
  int first_tag() const { return first_tag_; }
  std::size_t bytes_held() const { return bound_plan_ == nullptr ? 0 : bound_plan_->bytes_held(); }
  std::unique_ptr<BoundPlan> release_bound_plan() { return std::move(bound_plan_); }

  // With a bound plan: goes on as far as possible without blocking; true when the result is there.
  bool step();
  bool drain();  // Execution::drain() of every slice
  // Gives up. Memory of this object that may still be used stays allocated for ever. So must the
  // caller's memory if holds_memory() returns true afterwards.
  void abandon() noexcept;
  bool holds_memory() const { return holds_memory_; }

 private:
  enum class Phase : std::uint8_t { kNew, kInSlices, kResult };
  void start();
  void start_slices();
  bool advance_slices();
  std::size_t end_of(std::size_t slice) const;  // position in the vector, in bytes
  PlaceInCall place_in_call() const { return {rank_, size_, call_.root}; }
  bool has_own_work() const;
  std::byte* own_work();
  void put_input();
  void put_result();

  Call call_;
  Signature signature_;
  const int rank_, size_;
  std::unique_ptr<BoundPlan> bound_plan_;
  int first_tag_ = 0;
  std::byte* work_ = nullptr;
  const std::byte* input_ = nullptr;  // nullptr: the input is in work_
  Phase phase_ = Phase::kNew;
  std::size_t begun_ = 0, passed_on_ = 0;  // slices; a slice begins when its input is there
  bool holds_memory_ = false;
};

// Whether the schedule reads the input where the caller has it. It does not if the input is scaled,
// nor if the whole input becomes a part of the result.
bool reads_callers_input(const Call& call);

}  // namespace gradred
