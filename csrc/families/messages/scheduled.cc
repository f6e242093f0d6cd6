#include "families/messages/scheduled.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "families/memory/scaling.h"
#include "schedule/combinators.h"

namespace gradred {
namespace {

// The shortest run that has all chunks that this rank reads or writes in the work buffer.
Span chunks_used(const Schedule& schedule) {
  std::uint32_t first = schedule.chunks, end = 0;
  const auto use = [&](const Span& span) {
    if (span.buffer != BufferId::kWork || span.chunks == 0) return;
    first = std::min(first, span.first);
    end = std::max(end, span.first + span.chunks);
  };
  if (schedule.in_place) use(input_of(schedule));
  use(result_of(schedule));
  for (const Round& round : schedule.rounds) {
    for (const Step& step : round) {
      for (const Span& span : {step.source, step.target, step.operand}) use(span);
    }
  }
  return end == 0 ? Span{} : work(first, end - first);
}

}  // namespace

// Rounds that take more memory than this are made anew in each call, one at a time.
constexpr std::size_t kMostBytesOfRounds = std::size_t{256} << 10;

std::unique_ptr<BoundPlan> bind_plan(BoundPlanKey key, std::shared_ptr<const Schedule> schedule,
                                     Transport& transport) {
  auto bound_plan = std::make_unique<BoundPlan>(std::move(key));
  const bool is_usual = bound_plan->key.in_place || schedule->leaves.empty();
  if (!schedule->in_place && is_usual) {
    throw UsageError("the schedule '" + schedule->name +
                     "' reads an input buffer: give the one that is in place; gradred itself makes "
                     "the other of it where the input is not the output");
  }
  const bool as_it_is = bound_plan->key.in_place || !schedule->in_place;
  Schedule bound = as_it_is ? *schedule : from_input(*schedule);
  bound.rounds = bound.rounds.held_within(kMostBytesOfRounds);
  bound_plan->held = bound_plan->key.slices == 1 ? chunks_used(bound) : work(0, bound.chunks);
  bound_plan->schedule = std::make_shared<const Schedule>(std::move(bound));
  const Partition parts{bound_plan->key.count, bound_plan->key.slices};
  for (std::size_t i = 0; i < bound_plan->key.slices; ++i) {
    bound_plan->slices.push_back(std::make_unique<Execution>(
        *bound_plan->schedule, transport.open(bound_plan->key.memory), parts.length(i),
        Reduction::of(bound_plan->key.op, bound_plan->key.dtype), bound_plan->key.memory));
  }
  return bound_plan;
}

bool reads_callers_input(const Call& call) {
  if (call.op == Op::kPremul) return false;
  if (info_of(call.kind).input == Part::kOwnBlock) return false;
  if (has_blocks(call.kind)) return true;  // the work buffer is the bound plan's
  return !call.in_place() && call.in.data != call.out.data;
}

bool ScheduledCall::step() {
  if (phase_ == Phase::kNew) {
    if (call_.before() != nullptr && !call_.before()->ready()) return false;
    start();
  }
  if (phase_ == Phase::kInSlices) {
    if (!advance_slices()) return false;
    put_result();
    phase_ = Phase::kResult;
  }
  return bound_plan_->stream.ready();
}

bool ScheduledCall::advance_slices() {
  const auto& slices = bound_plan_->slices;
  if (begun_ < slices.size()) start_slices();
  bool complete = begun_ == slices.size();
  for (std::size_t i = 0; i < begun_; ++i) {
    if (slices[i]->active()) complete &= slices[i]->advance();
  }
  if (call_.flow() == nullptr) return complete;
  for (; passed_on_ < begun_ && !slices[passed_on_]->active(); ++passed_on_) {
    call_.flow()->has_result(end_of(passed_on_));
  }
  return complete;
}

void ScheduledCall::abandon() noexcept {
  if (!bound_plan_) return;
  bool quiet = bound_plan_->stream.finish();
  for (const auto& slice : bound_plan_->slices) quiet &= slice->abandon();
  if (quiet) return;
  bound_plan_->work.keep_for_ever();
  holds_memory_ = true;
}

bool ScheduledCall::drain() {
  bool quiet = true;
  if (bound_plan_) {
    for (const auto& slice : bound_plan_->slices) quiet &= slice->drain();
    quiet &= bound_plan_->stream.ready();
  }
  return quiet;
}

void ScheduledCall::start() {
  phase_ = Phase::kInSlices;
  input_ = nullptr;
  begun_ = passed_on_ = 0;
  put_input();
  start_slices();
}

void ScheduledCall::start_slices() {
  const Partition parts{bound_plan_->key.count, bound_plan_->slices.size()};
  for (; begun_ < bound_plan_->slices.size(); ++begun_) {
    if (call_.flow() != nullptr && !call_.flow()->has_input(end_of(begun_))) return;
    const std::size_t begin = parts.begin(begun_) * size_of(call_.dtype);
    bound_plan_->slices[begun_]->start(
        work_ + begin, input_ == nullptr ? nullptr : input_ + begin,
        static_cast<std::uint32_t>(first_tag_) + static_cast<std::uint32_t>(begun_), signature_,
        &bound_plan_->stream);
  }
}

std::size_t ScheduledCall::end_of(std::size_t slice) const {
  const Partition parts{bound_plan_->key.count, bound_plan_->slices.size()};
  return (parts.begin(slice) + parts.length(slice)) * size_of(call_.dtype);
}

// The work buffer is the caller's result if that is as long as the vector.
void ScheduledCall::put_input() {
  const std::size_t bytes = call_.count * size_of(call_.dtype);
  const bool own_block = info_of(call_.kind).input == Part::kOwnBlock;
  const void* const input = call_.input();
  work_ = has_own_work() ? own_work() : static_cast<std::byte*>(call_.out.data);
  if (!bound_plan_->key.in_place) {
    input_ = static_cast<const std::byte*>(input);
    return;
  }
  std::byte* place = own_block ? work_ + bytes * static_cast<std::size_t>(rank_) : work_;
  if ((has_own_work() || !call_.in_place()) && input != place) {
    bound_plan_->stream.copy(place, input, bytes * given_counts(call_.kind, place_in_call()));
  }
  if (call_.op == Op::kPremul) {
    bound_plan_->stream.scale(work_, bound_plan_->key.count, call_.dtype, call_.factor, false);
  }
}

// Returns where the vector would begin. There is memory only for the chunks that this rank uses: in
// a gather, a rank other than the root uses the blocks that it passes on.
std::byte* ScheduledCall::own_work() {
  const Partition parts{bound_plan_->key.count, bound_plan_->schedule->chunks};
  const Span& held = bound_plan_->held;
  const std::size_t bytes = parts.length(held.first, held.chunks) * size_of(call_.dtype);
  Allocation& work = bound_plan_->work;
  if (work.bytes() < bytes) work = Allocation(call_.out.memory, bytes);
  return work.data() - parts.begin(held.first) * size_of(call_.dtype);
}

void ScheduledCall::put_result() {
  if (info_of(call_.kind).result == Part::kOwnBlock) {
    const std::size_t bytes = call_.count * size_of(call_.dtype);
    bound_plan_->stream.copy(call_.out.data, work_ + bytes * static_cast<std::size_t>(rank_),
                             bytes);
  }
  const std::vector<int>& leaves = bound_plan_->schedule->leaves;
  const int inputs = leaves.empty() ? reduced_ranks(call_.kind, rank_, size_).count()
                                    : std::accumulate(leaves.begin(), leaves.end(), 0);
  Stream& stream = bound_plan_->stream;
  void* const result = call_.out.data;
  if (call_.op == Op::kAvg && inputs > 0) {
    stream.scale(result, call_.count, call_.dtype, inputs, true);
  } else if (inputs == 1 && gives_truth(call_.op, call_.dtype)) {
    stream.reduce(Reduction::of(Op::kLor, call_.dtype), result, result, result, call_.count);
  }
}

// Whether the result is shorter than the vector. The caller's buffer then holds no whole vector, or
// must stay as it is.
bool ScheduledCall::has_own_work() const {
  return got_counts(call_.kind, place_in_call()) < vector_counts(call_.kind, size_);
}

}  // namespace gradred
