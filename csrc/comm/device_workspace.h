// The workspace of one communicator: memory of a device that all ranks' devices read, by which
// calls on arrays there go from device to device and not through host memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "comm/call.h"
#include "memory/workspace.h"
#include "plan/plan.h"

namespace gradred {

class DeviceWorkspace {
 public:
  static constexpr std::size_t kLeastPerRank = 4096;  // of its bytes

  // `bytes`: as GRADRED_IPC_BYTES wants; 0: none. `programs`: its peers may open allocations of
  // the program's.
  DeviceWorkspace(int rank, int size, std::size_t bytes, bool programs)
      : rank_(rank), size_(size), bytes_(bytes), programs_(programs) {}

  // For this call, made at the first one; null: its arrays go through host memory. What else ranks
  // need for it they tell each other in the operation.
  Workspace* find(const Call& call, const Plan& plan);
  std::string text() const;  // how such calls have gone, in words

 private:
  std::string text_of_arrays() const;
  const char* why_not_wanted(const Call& call, const Plan& plan) const;

  const int rank_, size_;
  const std::size_t bytes_;
  const bool programs_;
  std::unique_ptr<Workspace> workspace_;
  DeviceMemory* device_ = nullptr;          // its device; null: nobody wanted one
  const char* why_not_wanted_ = nullptr;    // of the last call that wanted none
  std::string why_none_, why_not_reduced_;  // the latter of the last call that wanted one
};

}  // namespace gradred
