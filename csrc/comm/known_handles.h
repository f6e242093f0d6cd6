// The communicators by their MPI handles, so that a call need not ask the MPI. One thread at a time
// uses this table; in Python the GIL sees to that.
#pragma once

#include <array>
#include <memory>
#include <utility>

#include "comm/communicator.h"
#include "mpi/mpi.h"

namespace gradred {

class KnownHandles {
 public:
  static KnownHandles& get() {
    static auto* const known = new KnownHandles;
    return *known;
  }

  // Returns nullptr if the handle is not known, or if its communicator has been freed.
  Communicator* find(mpi::Handle handle) const {
    const auto& [known, comm] = entries_[place_of(handle)];
    return known == handle && comm && !comm->liveness().freed() ? comm.get() : nullptr;
  }
  void put(mpi::Handle handle, std::shared_ptr<Communicator> comm) {
    entries_[place_of(handle)] = {handle, std::move(comm)};
  }
  void forget_freed();

 private:
  KnownHandles();
  static std::size_t place_of(mpi::Handle handle) {
    return (handle ^ handle >> 6 ^ handle >> 12) % 64;
  }

  std::array<std::pair<mpi::Handle, std::shared_ptr<Communicator>>, 64> entries_{};
};

}  // namespace gradred
