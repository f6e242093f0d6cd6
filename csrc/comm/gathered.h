// A short call that some ranks could end before all have come, such as a broadcast, carried out so
// that each rank gets something from all: as an allreduce of all ranks' bytes, each at its place
// among zeros. So the messages that bring the data also bring what each rank has called: to compare
// that first would take as long again. Where each rank has a host of its own, as few blocks cross
// as can: gathers and scans are allgathers there, scatters are reduce-scatters.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "comm/carried.h"

namespace gradred {

class GatheredCall final : public Carried {
 public:
  static constexpr const char* kInstead =
      "but so short a call is carried out so that each rank gets something from all, as an "
      "allreduce, "
      "allgather or reduce-scatter of bytes, which compares the ranks' calls as well";
  // Whether a call over messages is short enough. All ranks give the same answer, wherever their
  // arrays are.
  static bool serves(const Call& call, int size);

  // The arrays of `call` are in host memory. `alone`: each rank has a host of its own. `memory` is
  // what another call has left, or nothing. Throws std::bad_alloc.
  GatheredCall(const Call& call, int rank, int size, bool alone,
               std::unique_ptr<std::byte[]> memory = nullptr);
  // After finish(): for the next call.
  std::unique_ptr<std::byte[]> take_memory() { return std::move(all_); }
  const Call& call() const override { return sum_; }
  void finish() override;
  void keep_for_ever() noexcept override { static_cast<void>(all_.release()); }

 private:
  std::byte* block_of(int rank) const;
  void reduce() const;

  const Call made_;  // by the program
  const int rank_, size_;
  const std::size_t block_;  // bytes of what one rank gives
  Call sum_;
  std::unique_ptr<std::byte[]> all_;
};

}  // namespace gradred
