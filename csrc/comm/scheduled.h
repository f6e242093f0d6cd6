// A collective call carried out by a schedule: input into place, the executions, result into place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/call.h"
#include "comm/started.h"
#include "engine/execution.h"

namespace gradred {

// What a runner is good for.
struct RunnerKey {
  Collective collective = Collective::kAllreduce;
  std::string name;               // of the algorithm with its parameters
  const Schedule* own = nullptr;  // a schedule of the caller's own, then the name counts nothing
  std::size_t count = 0;          // elements of the work buffer
  std::size_t slices = 1;
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;
  bool in_place = true;  // the work buffer has the input; else it is read where the caller has it

  bool operator==(const RunnerKey&) const = default;
};

// What one schedule needs to run on vectors of one length and type: kept and used again.
struct Runner {
  RunnerKey key;
  std::shared_ptr<const Schedule> schedule;
  std::vector<std::unique_ptr<Execution>> slices;
  std::vector<std::byte> work;  // where the caller's buffers cannot serve as the work buffer

  std::size_t bytes_held() const {
    return work.capacity() + schedule->rounds.bytes_held() +
           schedule->scratch_slots * (key.count / schedule->chunks + 1) * size_of(key.dtype);
  }
};

// The schedule is in place; the runner's is as the key says.
std::unique_ptr<Runner> make_runner(RunnerKey key, std::shared_ptr<const Schedule> schedule,
                                    Transport& transport);

class ScheduledOperation : public StartedOperation {
 public:
  ScheduledOperation(const Call& call, int rank, int size)
      : call_(call), rank_(rank), size_(size) {}

 protected:
  bool step() override;
  void withdraw() noexcept override;

  bool has_runner() const { return runner_ != nullptr; }
  // The tags from first_tag on, one per slice, are this operation's.
  void use(std::unique_ptr<Runner> runner, int first_tag) {
    runner_ = std::move(runner);
    first_tag_ = first_tag;
  }
  bool drain();  // Execution::drain() of every slice
  std::unique_ptr<Runner> release_runner() { return std::move(runner_); }

  const Call call_;
  const int rank_, size_;

 private:
  void start();
  void put_input();
  void put_result();

  std::unique_ptr<Runner> runner_;
  int first_tag_ = 0;
  std::byte* work_ = nullptr;
  const std::byte* input_ = nullptr;  // null where it is in work_
  bool started_ = false;
};

// Whether the schedule reads the input where the caller has it: not where the input is scaled, nor
// where a part of the result is all of the input.
bool reads_callers_input(const Call& call);

// Brings `count` elements of input into the form that is combined (premul), and back (avg).
void scale_input(const Call& call, void* data, std::size_t count);
void scale_result(const Call& call, void* data, std::size_t count, int size);

}  // namespace gradred
