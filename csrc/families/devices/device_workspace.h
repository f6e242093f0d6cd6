// The workspace of one communicator: device memory that the devices of all ranks can read. With it,
// calls on arrays in device memory go from device to device and not through host memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "calls/family.h"
#include "memory/workspace.h"

namespace gradred {

class DeviceWorkspace {
 public:
  static constexpr std::size_t kLeastPerRank = 4096;            // the least bytes of a workspace
  static constexpr std::size_t kLeast = std::size_t{64} << 10;  // shorter calls do not use it

  // `bytes`: the value of GRADRED_IPC_BYTES; 0: no workspace. `programs`: peers may open
  // allocations of the program.
  DeviceWorkspace(int rank, int size, std::size_t bytes, bool programs)
      : rank_(rank), size_(size), bytes_(bytes), programs_(programs) {}

  // The workspace for this call, which a family takes with `access`, made at the first such call;
  // nullptr: the arrays go through host memory. Inside the operation the ranks exchange what else
  // they need for it.
  Workspace* find(const Call& call, ArrayAccess access);
  std::string text() const;  // in words, how such calls have gone

 private:
  std::string text_of_arrays() const;
  const char* why_not_wanted(const Call& call, ArrayAccess access) const;

  const int rank_, size_;
  const std::size_t bytes_;
  const bool programs_;
  std::unique_ptr<Workspace> workspace_;
  DeviceMemory* device_ = nullptr;          // its device; nullptr: no call wanted one
  const char* why_not_wanted_ = nullptr;    // reason of the last call that wanted none
  std::string why_none_, why_not_reduced_;  // the latter for the last call that wanted one
};

}  // namespace gradred
