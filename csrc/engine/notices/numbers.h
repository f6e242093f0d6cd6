// The numbers of the operations of one communicator over messages: which have begun on this rank,
// and which have ended.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

namespace gradred {

// Any thread may call these functions. They take a lock only if an operation ends far ahead of the
// oldest in flight.
class OperationNumbers {
 public:
  // At least the number of operations that may be in flight with tags of their own, which is
  // TagSpace::window().
  static constexpr std::size_t kMost = 1024;

  OperationNumbers() = default;
  ~OperationNumbers() { delete ended_.load(); }
  OperationNumbers(const OperationNumbers&) = delete;
  OperationNumbers& operator=(const OperationNumbers&) = delete;

  std::uint64_t begin() { return next_.fetch_add(1); }
  std::uint64_t begun() const { return next_.load(); }
  void end(std::uint64_t number);
  bool has_ended(std::uint64_t number) const;
  // All operations before this number have ended.
  std::uint64_t oldest() const { return oldest_.load(); }

 private:
  // For each place of the ring: 1 + the last number that ended there.
  using Ring = std::array<std::atomic<std::uint64_t>, kMost>;

  bool ended_in_ring(std::uint64_t number) const {
    const Ring* const ring = ended_.load();
    return ring != nullptr && (*ring)[number % kMost].load() == number + 1;
  }
  Ring& ring();
  void pass_ended();
  bool take_far(std::uint64_t number);

  std::atomic<std::uint64_t> next_{0}, oldest_{0};
  std::atomic<Ring*> ended_{nullptr};  // made when the first operation ends
  std::atomic<bool> any_far_{false};
  mutable std::mutex mutex_;
  std::set<std::uint64_t> far_;  // ended numbers that are too far ahead for ended_
};

}  // namespace gradred
