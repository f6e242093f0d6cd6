// Parts of CUDA devices' memory that other processes' devices read, by CUDA IPC: each rank exports
// one allocation of gradred's own, once. What programs allocate is often part of a pool, or mapped,
// and cannot be exported.
#pragma once

#include <cstdint>
#include <vector>

#include "device/kernels.h"
#include "device/memory.h"
#include "memory/workspace.h"

namespace gradred::device {

class CudaWorkspace final : public Workspace {
 public:
  // In the memory's context, which is current. Throws DriverError.
  CudaWorkspace(CudaMemory& memory, std::size_t rank, std::size_t ranks, std::size_t bytes);
  ~CudaWorkspace() override;

  Ticket ticket() override;
  void open(std::size_t rank, const Ticket& ticket) override;
  std::size_t bytes() const override { return least_; }
  bool is_of_one_device() const override { return one_device_; }
  bool reduces(Op op, DType dtype, std::string& why) override;
  void put(std::size_t place, const void* source, std::size_t bytes) override;
  void put_scaled(std::size_t place, const void* source, DType dtype, std::size_t count,
                  double factor) override;
  void get(void* target, std::size_t rank, std::size_t place, std::size_t bytes) override;
  void reduce(Op op, DType dtype, std::size_t place, std::size_t count) override;
  bool ready() override;
  bool abandon() noexcept override;

 private:
  struct Pattern {
    std::uint64_t words[8];
  };
  struct Described;

  static Pattern pattern_of(std::uint64_t seed);
  Address part(std::size_t rank) const {
    return rank == rank_ ? own_.get() : imported_[rank].get();
  }

  CudaMemory& memory_;
  const std::size_t rank_;
  std::size_t least_;
  const std::uint64_t seed_;  // of the pattern at the beginning, until it is in use
  DeviceAllocation own_;
  const IpcHandle exported_;
  std::vector<ImportedAllocation> imported_;  // by rank; none of this one
  CudaStream stream_;
  std::vector<const void*> inputs_;
  bool one_device_ = true;
};

}  // namespace gradred::device
