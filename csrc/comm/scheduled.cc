#include "comm/scheduled.h"

#include <cstring>

#include "base/errors.h"

namespace gradred {

std::unique_ptr<Runner> make_runner(RunnerKey key, std::shared_ptr<const Schedule> schedule,
                                    Transport& transport) {
  auto runner = std::make_unique<Runner>();
  runner->key = std::move(key);
  runner->schedule = std::move(schedule);
  const Partition parts{runner->key.count, runner->key.slices};
  for (std::size_t i = 0; i < runner->key.slices; ++i) {
    runner->slices.push_back(std::make_unique<Execution>(
        *runner->schedule, transport.open(), parts.length(i), size_of(runner->key.dtype),
        find_reduction(runner->key.op, runner->key.dtype)));
  }
  return runner;
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
  work_ = put_input();
  const Partition parts{runner_->key.count, runner_->slices.size()};
  const Signature signature = call_.signature();
  for (std::size_t i = 0; i < runner_->slices.size(); ++i) {
    runner_->slices[i]->start(
        work_ + parts.begin(i) * size_of(call_.dtype),
        static_cast<std::uint32_t>(first_tag_) + static_cast<std::uint32_t>(i), signature);
  }
}

// The work buffer is the caller's result where that is as long as the vector.
std::byte* ScheduledOperation::put_input() {
  const std::size_t bytes = call_.count * size_of(call_.dtype);
  auto* recv = static_cast<std::byte*>(call_.recv);
  const bool in_place = call_.send == kInPlace;
  if (call_.kind == Kind::kReduceScatterBlock) {
    const std::size_t all = bytes * static_cast<std::size_t>(size_);
    runner_->work.resize(all);
    if (all > 0) std::memcpy(runner_->work.data(), in_place ? recv : call_.send, all);
    scale_input(call_, runner_->work.data(), runner_->key.count);
    return runner_->work.data();
  }
  std::byte* place =
      call_.kind == Kind::kAllgather ? recv + bytes * static_cast<std::size_t>(rank_) : recv;
  if (!in_place && call_.send != place && bytes > 0) std::memcpy(place, call_.send, bytes);
  scale_input(call_, recv, runner_->key.count);
  return recv;
}

void ScheduledOperation::put_result() {
  if (call_.kind == Kind::kReduceScatterBlock) {
    const std::size_t bytes = call_.count * size_of(call_.dtype);
    if (bytes > 0) std::memcpy(call_.recv, work_ + bytes * static_cast<std::size_t>(rank_), bytes);
  }
  scale_result(call_, call_.recv, call_.count, size_);
}

}  // namespace gradred
