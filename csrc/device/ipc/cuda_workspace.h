// Device memory that the devices of other processes read by CUDA IPC. Each rank exports one range
// of gradred's own memory, its part, into which any array can be copied. Allocations in which
// arrays lie are used directly if they can be exported.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/ipc/cuda_parts.h"
#include "device/ipc/peers_memory.h"
#include "device/kernels/kernels.h"
#include "device/streams/cuda_order.h"
#include "memory/workspace.h"

namespace gradred::device {

class CudaWorkspace final : public Workspace {
 public:
  // The context must be current. Throws DriverError.
  CudaWorkspace(const CudaParts& parts, std::size_t rank, std::size_t ranks, std::size_t bytes);
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
  std::unique_ptr<GivenWork> give(Stream& before) override;
  bool has_given_work() override { return cuda_.orders.has_given_work(); }
  bool abandon() noexcept override;
  void keep_all() noexcept override;
  void let_go_of_programs() noexcept override;

 private:
  struct Pattern {
    std::uint64_t words[8];
  };
  using Sample = std::array<std::byte, 32>;  // the first bytes of an array of at least this length
  class Work;
  struct Block;
  struct Described;
  struct DescribedArray;
  struct Opened {
    PeersMemory::Key key{};
    Address begin = 0;  // 0: not opened
  };

  static Pattern pattern_of(std::uint64_t seed);
  Block described(SharedPlace place) const;
  Opened opened(const Block& block);
  Sample sample_of(Address array);
  Address part_of(std::size_t rank) const {
    return rank == rank_ ? address_of(own_.get()) : parts_[rank].begin + offsets_[rank];
  }

  const CudaParts& cuda_;
  const std::size_t rank_;
  std::size_t least_;
  const std::uint64_t seed_;  // of the pattern in the part until it is in use
  // This rank's part; its memory stays allocated, since peers may still have it open.
  ExportedRange own_;
  // By rank: the allocations that contain the parts; this rank's entry is unused.
  std::vector<Opened> parts_;
  std::vector<std::uint64_t> offsets_;  // by rank: the part's offset in its allocation
  // Per rank, the opened allocations of peers' arrays by the peer's number. known_: allocations of
  // this rank that all peers have opened. exported_: allocations of the program that some peers
  // have opened.
  std::vector<std::map<std::uint64_t, Opened>> arrays_;
  std::set<std::uint64_t> known_, exported_;
  // Value of ProgramsMemory::ended() up to which exported_ has been checked.
  std::uint64_t ended_seen_ = 0;
  CudaStream stream_;
  bool one_device_ = true;
  const bool by_turns_;
};

}  // namespace gradred::device
