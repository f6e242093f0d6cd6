// A collective call carried out by a schedule: input into place, the executions, result into place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "comm/host_parts.h"
#include "engine/execution.h"
#include "memory/memory.h"

namespace gradred {

// What a bound plan is good for.
struct BoundPlanKey {
  Collective collective = Collective::kAllreduce;
  std::string name;               // of the algorithm with its parameters
  const Schedule* own = nullptr;  // a schedule of the caller's own, then the name counts nothing
  std::size_t count = 0;          // elements of the work buffer
  std::size_t slices = 1;
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;
  bool in_place = true;  // the work buffer has the input; else it is read where the caller has it
  Memory memory{};       // of the caller's buffers and all others

  bool operator==(const BoundPlanKey&) const = default;
};

// What one schedule needs to run on vectors of one length and type: kept and used again.
struct BoundPlan {
  explicit BoundPlan(BoundPlanKey made_for) : key(std::move(made_for)), stream(key.memory) {}

  BoundPlanKey key;
  std::shared_ptr<const Schedule> schedule;
  std::vector<std::unique_ptr<Execution>> slices;
  Allocation work;    // where the caller's buffers cannot serve as the work buffer
  Stream stream;      // of what comes before the slices and after them
  HostParts parts{};  // of plan "hierarchical"

  std::size_t bytes_held() const {
    return work.bytes() + schedule->rounds.bytes_held() +
           schedule->scratch_slots * (key.count / schedule->chunks + 1) * size_of(key.dtype);
  }
};

// The schedule is in place; the bound plan's is as the key says.
std::unique_ptr<BoundPlan> bind_plan(BoundPlanKey key, std::shared_ptr<const Schedule> schedule,
                                     Transport& transport);

// One call on its way through a bound plan.
class ScheduledCall {
 public:
  ScheduledCall(const Call& call, int rank, int size) : rank_(rank), size_(size) { bind(call); }
  // The bound plan that it has serves this call from now on. Not while another is on its way.
  void bind(const Call& call) {
    call_ = call;
    signature_ = call.signature();
    phase_ = Phase::kNew;
  }

  const Call& call() const { return call_; }
  const Signature& signature() const { return signature_; }
  bool has_bound_plan() const { return bound_plan_ != nullptr; }
  void use(std::unique_ptr<BoundPlan> bound_plan) { bound_plan_ = std::move(bound_plan); }
  // The tags from here on, one per slice, are this call's.
  void use_tags(int first_tag) { first_tag_ = first_tag; }
  BoundPlan& bound_plan() const { return *bound_plan_; }
  int first_tag() const { return first_tag_; }
  std::size_t bytes_held() const { return bound_plan_ == nullptr ? 0 : bound_plan_->bytes_held(); }
  std::unique_ptr<BoundPlan> release_bound_plan() { return std::move(bound_plan_); }

  // With a bound plan: as far as possible without blocking; true when the result is there.
  bool step();
  bool drain();  // Execution::drain() of every slice
  // Gives up. What may still be used of its own memory stays allocated for ever; the caller's has
  // to, where holds_memory() says so afterwards.
  void abandon() noexcept;
  bool holds_memory() const { return holds_memory_; }

 private:
  enum class Phase : std::uint8_t { kNew, kInSlices, kResult };
  void start();
  void start_slices();
  bool advance_slices();
  std::size_t end_of(std::size_t slice) const;  // in the vector, in bytes
  void put_input();
  void put_result();

  Call call_;
  Signature signature_;
  const int rank_, size_;
  std::unique_ptr<BoundPlan> bound_plan_;
  int first_tag_ = 0;
  std::byte* work_ = nullptr;
  const std::byte* input_ = nullptr;  // null where it is in work_
  Phase phase_ = Phase::kNew;
  std::size_t begun_ = 0, passed_on_ = 0;  // slices: one begins when its input is there
  bool holds_memory_ = false;
};

// Whether the schedule reads the input where the caller has it: not where the input is scaled, nor
// where a part of the result is all of the input.
bool reads_callers_input(const Call& call);

// Brings `count` elements of input in host memory into the form that is combined (premul), and back
// (avg).
void scale_input(const Call& call, void* data, std::size_t count);
void scale_result(const Call& call, void* data, std::size_t count, int size);

}  // namespace gradred
