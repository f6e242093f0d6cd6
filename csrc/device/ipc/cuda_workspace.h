// Device memory that the devices of other processes read by CUDA IPC. Each rank exports one range
// of gradred's own memory, its part, into which any array can be copied.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/ipc/cuda_parts.h"
#include "device/ipc/cuda_shared_arrays.h"
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
  bool reduces(Op op, DType dtype, std::string& why) override;
  SharedArrays& arrays() override { return arrays_; }
  std::byte* part(std::size_t rank, std::size_t place) override;
  void copy(void* target, const void* source, std::size_t bytes) override;
  void copy_scaled(void* target, const void* source, DType dtype, std::size_t count,
                   double factor) override;
  void reduce(Op op, DType dtype, std::span<void* const> targets,
              std::span<const void* const> inputs, std::size_t count) override;
  bool ready() override;
  std::unique_ptr<EnqueuedWork> give(Stream& before) override;
  bool has_enqueued_work() override { return cuda_.orders.has_enqueued_work(); }
  bool abandon() noexcept override;
  void keep_all() noexcept override;

 private:
  struct Pattern {
    std::uint64_t words[8];
  };
  class Work;
  static Pattern pattern_of(std::uint64_t seed);
  Address part_of(std::size_t rank) const {
    return rank == rank_ ? address_of(own_.get()) : parts_[rank].begin + offsets_[rank];
  }

  const CudaParts& cuda_;
  const std::size_t rank_;
  const std::uint64_t seed_;  // of the pattern in the part until it is in use
  // This rank's part; its memory stays allocated, since peers may still have it open.
  ExportedRange own_;
  // By rank: the allocations that contain the parts; this rank's entry is unused.
  std::vector<OpenedBlock> parts_;
  std::vector<std::uint64_t> offsets_;  // by rank: the part's offset in its allocation
  CudaStream stream_;
  CudaSharedArrays arrays_;
};

}  // namespace gradred::device
