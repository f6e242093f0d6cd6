// Parts of CUDA devices' memory that other processes' devices read, by CUDA IPC: each rank exports
// one allocation of gradred's own, once, into which any array can be copied; and the allocations in
// which arrays lie, where they can be exported.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/kernels.h"
#include "device/memory.h"
#include "device/peers_memory.h"
#include "memory/workspace.h"

namespace gradred::device {

class CudaWorkspace final : public Workspace {
 public:
  // In the memory's context, which is current. Throws DriverError.
  CudaWorkspace(CudaMemory& memory, std::size_t rank, std::size_t ranks, std::size_t bytes);
  ~CudaWorkspace() override;

  Ticket ticket() override;
  bool attempt(const std::function<void()>& open) override;
  void open(std::size_t rank, const Ticket& ticket) override;
  std::size_t bytes() const override { return least_; }
  bool is_of_one_device() const override { return one_device_; }
  bool is_used_by_turns() const override { return by_turns_; }
  bool reduces(Op op, DType dtype, std::string& why) override;
  std::size_t most_targets() const override { return Kernels::kMostTargets; }
  Places find(Array input, Array result) override;
  Ticket ticket_of(SharedPlace place) override;
  void open_array(std::size_t rank, SharedPlace place, const Ticket& ticket) override;
  void set_known(SharedPlace place) override { known_.insert(place.allocation()); }
  bool is_known(SharedPlace place) override { return known_.contains(place.allocation()); }
  bool has_ended() override;
  std::vector<std::uint64_t> take_ended(std::size_t most) override;
  void close_array(std::size_t rank, std::uint64_t allocation) override;
  std::byte* part(std::size_t rank, std::size_t place) override;
  std::byte* array(std::size_t rank, SharedPlace place) override;
  void copy(void* target, const void* source, std::size_t bytes) override;
  void copy_scaled(void* target, const void* source, DType dtype, std::size_t count,
                   double factor) override;
  void reduce(Op op, DType dtype, std::span<void* const> targets,
              std::span<const void* const> inputs, std::size_t count) override;
  bool ready() override;
  bool abandon() noexcept override;
  void let_go_of_programs() noexcept override;

 private:
  struct Pattern {
    std::uint64_t words[8];
  };
  using Sample = std::array<std::byte, 32>;  // of an array, that long at least
  struct Block;
  struct Described;
  struct DescribedArray;
  struct Opened {
    PeersMemory::Key key{};
    Address begin = 0;  // 0: nothing
  };

  static Pattern pattern_of(std::uint64_t seed);
  Block described(SharedPlace place) const;
  Opened opened(const Block& block);
  Sample sample_of(Address array);
  Address part_of(std::size_t rank) const {
    return rank == rank_ ? address_of(own_.get()) : parts_[rank].begin + offsets_[rank];
  }

  CudaMemory& memory_;
  const std::size_t rank_;
  std::size_t least_;
  const std::uint64_t seed_;   // of the pattern at the beginning, until it is in use
  ExportedRange own_;          // of the exported memory, which stays: peers may have it open still
  std::vector<Opened> parts_;  // what they lie in, by rank; none of this one
  std::vector<std::uint64_t> offsets_;  // of the parts in these
  // What peers' arrays lie in, by rank and by the peer's own number; and of this rank's, what all
  // peers have opened, and what of the program's some have.
  std::vector<std::map<std::uint64_t, Opened>> arrays_;
  std::set<std::uint64_t> known_, told_;
  std::uint64_t ended_seen_ = 0;  // of ProgramsMemory::ended(): of these told_ has none
  CudaStream stream_;
  bool one_device_ = true;
  const bool by_turns_;
};

}  // namespace gradred::device
