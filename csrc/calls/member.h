// This rank in one communicator, and what the ranks of the communicator have agreed on.
#pragma once

#include <atomic>
#include <cstdint>

#include "mpi/mpi.h"

namespace gradred {

struct Member {
  mpi::Handle comm;  // the program's
  int rank, size;
  // Whether the MPI knows nothing of this communicator, because shrink() or connect() has made it.
  bool node_only;
};

struct Agreed {
  // Whether a blocking call has set up what gradred needs. Always true without an MPI.
  std::atomic<bool> set_up{false};
  // Whether gradred itself carries out nonblocking calls. Otherwise, and always before the set-up,
  // the MPI carries them out.
  std::atomic<bool> starts{false};
  std::uint64_t key = 0;       // the same on all ranks; 0 before set-up
  bool deterministic = false;  // this rank's setting, rank 0's after set-up
  // Whether thread_may_drive() holds on all ranks, and whether may_start_on_node() does.
  bool threads_drive = false, starts_in_memory = false;
};

}  // namespace gradred
