// One operation that a rank has submitted by name.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "calls/call.h"
#include "engine/started.h"
#include "named/board.h"
#include "named/submission.h"
#include "named/timeline.h"

namespace gradred {

class NamedOperations;  // named.h

struct NamedArray {
  InBuffer in{.data = nullptr};
  // The same address as `in`: in place. No address: host memory is allocated for the result.
  OutBuffer out{};
  // If the result's length is only known later: the length in bytes that it must have to go to
  // `out`. A result of another length goes to memory that is allocated for it.
  std::size_t out_bytes = 0;
  DType dtype = DType::kUInt8;
  std::size_t count = 0;
  std::int64_t rows = 0;   // along the first axis
  bool on_device = false;  // set also if the array has no elements
  After after{};
  bool filled = false;  // the result went to `out`, not to allocated memory

  std::size_t bytes() const { return count * size_of(dtype); }
  DeviceMemory* device() const {
    return in.memory.is_host() ? out.memory.device() : in.memory.device();
  }
  std::size_t row_bytes() const { return rows == 0 ? 0 : bytes() / static_cast<std::size_t>(rows); }
};

class NamedOperation;

// Bytes of a process that an operation reads, or writes.
struct MemoryUse {
  std::uintptr_t begin = 0, end = 0;
  bool writes = false;
  std::uint32_t array = 0;                   // its place in the group
  const NamedOperation** held_by = nullptr;  // MemoryInFlight's record of the operation

  bool overlaps(const MemoryUse& other) const { return begin < other.end && other.begin < end; }
};

// Adds an array to a submission, whose kind has been set. `order`: its axes from the slowest to the
// fastest in memory; empty: C order.
void add_array(Submission& what, std::vector<NamedArray>& arrays, NamedArray array,
               std::span<const std::int64_t> shape, std::span<const int> order = {});
// The caller calls this after the last add_array().
void finish_arrays(Submission& what, const std::vector<NamedArray>& arrays);

// A result for which memory was allocated.
struct NamedOutput {
  std::shared_ptr<std::byte[]> memory;
  std::size_t bytes = 0;
};

// One operation in flight: what this rank submitted under one name.
class NamedOperation final : public StartedOperation {
 public:
  NamedOperation(std::shared_ptr<NamedOperations> all, std::string&& key,
                 const Submission& submission, std::vector<NamedArray>&& arrays,
                 std::vector<std::int64_t>&& splits, NamedTexts&& texts = {})
      : key_(std::move(key)),
        submission_(submission),
        arrays_(std::move(arrays)),
        splits_(std::move(splits)),
        texts_(std::move(texts)),
        all_(std::move(all)) {
    record_uses();
  }

  const std::string& key() const { return key_; }  // its name
  // The name in quotes, with the title() of its NamedOperations if there is one.
  std::string quoted() const;
  const Submission& submission() const { return submission_; }
  std::vector<NamedArray>& arrays() { return arrays_; }
  // Of an alltoall: the number of rows that each rank gets.
  const std::vector<std::int64_t>& splits() const { return splits_; }
  // The caller's memory, as it was submitted.
  std::span<const MemoryUse> uses() const { return uses_; }
  // Whether both use memory that one of them writes.
  bool shares_memory_with(const NamedOperation& other) const;
  // Whether one that was in flight when this one was submitted, of the same communicator, did so.
  bool shares_memory() const { return submitted_as_ == NamedForm::kAlone; }
  const NamedOperations* all() const { return all_.get(); }
  // Returns where a result of `bytes` goes. That is the caller's memory if it has this length and
  // does not overlap the input; the input may lie at `input_at` bytes of it. Else memory is
  // allocated.
  OutBuffer make_output(std::size_t array, std::size_t bytes, std::size_t input_at = kNowhere);
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  // Valid after the operation has succeeded. Allocated results in the order of their arrays; by
  // array and rank, the number of rows.
  std::vector<NamedOutput> outputs;
  std::vector<std::vector<std::int64_t>> rows;
  int last_joined = -1;

  std::string waiter() const override;
  std::string waits_for() const override;
  bool needs_no_mpi() const override;
  bool spins() const override;
  std::size_t bytes() const override { return submission_.bytes; }
  // After the operation has failed: a device may still use the arrays.
  bool holds_memory() const override { return holds_memory_; }
  UsedTransport used_transport() const override { return used_transport_; }
  bool is_copied_to_host() const override { return is_copied_to_host_; }
  // Also whether its work has been given to the device, so that streams can wait for it.
  bool is_given() const override { return is_given_.load(std::memory_order_acquire) || ended(); }
  // Makes later work of a stream of the program wait for the results. Only if is_given().
  void precede(std::uint64_t stream);
  // For an operation for which only streams wait: if it has not ended by then (now_ns()), all
  // operations of the communicator end with TimeoutError.
  void end_at(std::uint64_t deadline_ns) {
    for (const auto& one : given_) one->set_deadline(deadline_ns);
  }

 protected:
  bool step() override;
  void give_up(const std::exception_ptr& reason) noexcept override;
  void withdraw() noexcept override {}

 private:
  friend class NamedOperations;
  friend class MemoryInFlight;

  void record_uses();  // sets uses_

  const std::string key_;
  Submission submission_;  // `priority` and `form` are replaced by the agreed values
  NamedForm submitted_as_ = NamedForm::kPlain;  // set before it is submitted
  std::vector<NamedArray> arrays_;
  const std::vector<std::int64_t> splits_;
  const NamedTexts texts_;
  std::array<MemoryUse, 2> uses_of_one_{};  // those of a lone array
  std::vector<MemoryUse> uses_of_many_;
  std::span<MemoryUse> uses_;   // in one of the two
  std::uint64_t added_as_ = 0;  // by MemoryInFlight, which protects it; 0: it is not there
  const std::shared_ptr<NamedOperations> all_;
  // Protected by NamedOperations::intake_. No value: the board has no room for the operation yet.
  std::optional<Board::Place> place_;
  NamedTimes times_;  // set while a timeline is written
  UsedTransport used_transport_ =
      UsedTransport::kUnknown;  // like the next one, of its last chunk, set before finished_
  bool is_copied_to_host_ = false;
  std::exception_ptr failed_with_;
  bool holds_memory_ = false;                     // like failed_with_, set before finished_
  std::vector<std::shared_ptr<EndEvent>> given_;  // set before is_given_
  std::atomic<bool> is_given_{false};
  std::atomic<bool> finished_{false};  // it has a result, or failed_with_ is set
};

}  // namespace gradred
