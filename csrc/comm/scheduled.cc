#include "comm/scheduled.h"

#include <cstring>

#include "base/errors.h"
#include "schedule/combinators.h"

namespace gradred {

// Rounds that take more are made anew in each call, one at a time.
constexpr std::size_t kMostBytesOfRounds = std::size_t{256} << 10;

std::unique_ptr<Runner> make_runner(RunnerKey key, std::shared_ptr<const Schedule> schedule,
                                    Transport& transport) {
  auto runner = std::make_unique<Runner>();
  if (!schedule->in_place) {
    throw UsageError("the schedule '" + schedule->name +
                     "' reads an input buffer: give the one that is in place; gradred itself makes "
                     "the other of it where the input is not the output");
  }
  runner->key = std::move(key);
  Schedule bound = runner->key.in_place ? *schedule : from_input(*schedule);
  bound.rounds = bound.rounds.held_within(kMostBytesOfRounds);
  runner->schedule = std::make_shared<const Schedule>(std::move(bound));
  const Partition parts{runner->key.count, runner->key.slices};
  for (std::size_t i = 0; i < runner->key.slices; ++i) {
    runner->slices.push_back(std::make_unique<Execution>(
        *runner->schedule, transport.open(), parts.length(i), size_of(runner->key.dtype),
        find_reduction(runner->key.op, runner->key.dtype)));
  }
  return runner;
}

bool reads_callers_input(const Call& call) {
  if (call.op == Op::kPremul) return false;
  if (call.kind == Kind::kReduceScatterBlock) return true;  // work is the runner's
  return call.kind == Kind::kAllreduce && call.send != kInPlace && call.send != call.recv;
}

void scale_input(const Call& call, void* data, std::size_t count) {
  if (call.op == Op::kPremul) scale(data, count, call.dtype, call.factor, false);
}

void scale_result(const Call& call, void* data, std::size_t count, int size) {
  if (call.op == Op::kAvg) scale(data, count, call.dtype, size, true);
}

bool ScheduledOperation::step() {
  if (!started_) start();
  bool complete = true;
  for (const auto& slice : runner_->slices) {
    if (slice->active()) complete &= slice->advance();
  }
  if (complete) put_result();
  return complete;
}

void ScheduledOperation::withdraw() noexcept {
  if (!runner_) return;
  for (const auto& slice : runner_->slices) slice->abandon();
}

bool ScheduledOperation::drain() {
  bool quiet = true;
  if (runner_ && started_) {
    for (const auto& slice : runner_->slices) quiet &= slice->drain();
  }
  return quiet;
}

void ScheduledOperation::start() {
  started_ = true;
  put_input();
  const Partition parts{runner_->key.count, runner_->slices.size()};
  const Signature signature = call_.signature();
  for (std::size_t i = 0; i < runner_->slices.size(); ++i) {
    const std::size_t begin = parts.begin(i) * size_of(call_.dtype);
    runner_->slices[i]->start(
        work_ + begin, input_ == nullptr ? nullptr : input_ + begin,
        static_cast<std::uint32_t>(first_tag_) + static_cast<std::uint32_t>(i), signature);
  }
}

// The work buffer is the caller's result where that is as long as the vector.
void ScheduledOperation::put_input() {
  const std::size_t bytes = call_.count * size_of(call_.dtype);
  const bool blocks = call_.kind == Kind::kReduceScatterBlock;
  const std::size_t all = blocks ? bytes * static_cast<std::size_t>(size_) : bytes;
  const void* const input = call_.send == kInPlace ? call_.recv : call_.send;
  work_ = static_cast<std::byte*>(call_.recv);
  if (blocks) {
    runner_->work.resize(all);
    work_ = runner_->work.data();
  }
  if (!runner_->key.in_place) {
    input_ = static_cast<const std::byte*>(input);
    return;
  }
  std::byte* place =
      call_.kind == Kind::kAllgather ? work_ + bytes * static_cast<std::size_t>(rank_) : work_;
  if ((blocks || call_.send != kInPlace) && input != place && all > 0) {
    std::memcpy(place, input, all);
  }
  scale_input(call_, work_, runner_->key.count);
}

void ScheduledOperation::put_result() {
  if (call_.kind == Kind::kReduceScatterBlock) {
    const std::size_t bytes = call_.count * size_of(call_.dtype);
    if (bytes > 0) std::memcpy(call_.recv, work_ + bytes * static_cast<std::size_t>(rank_), bytes);
  }
  scale_result(call_, call_.recv, call_.count, size_);
}

}  // namespace gradred
