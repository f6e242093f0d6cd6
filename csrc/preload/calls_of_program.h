// The program's calls as gradred carries them out. A function without a result leaves the call to
// the MPI, on all ranks alike; otherwise the result is the MPI's code, 0 for success. Only a
// program's error handler throws.
#pragma once

#include <cstdint>
#include <optional>

#include "base/kinds.h"
#include "mpi/mpi.h"
#include "preload/program_comm.h"

namespace gradred::preload {

struct Reduction {
  Kind kind;
  const void* send;
  void* recv;
  std::int64_t count;
  mpi::Handle type, op;
};
struct Broadcast {
  void* data;
  std::int64_t count;
  mpi::Handle type;
  int root;
};
// Of a rank's block.
struct Gathering {
  const void* send;
  std::int64_t send_count;
  mpi::Handle send_type;
  void* recv;
  std::int64_t recv_count;
  mpi::Handle recv_type;
};

// `comm`: of the program; nullptr: the call is the MPI's.
std::optional<int> reduce(ProgramComm* comm, const Reduction& asked);
std::optional<int> broadcast(ProgramComm* comm, const Broadcast& asked);
std::optional<int> gather(ProgramComm* comm, const Gathering& asked);
// Returns at once; `request` gets a request of the MPI.
std::optional<int> start_reduction(ProgramComm* comm, const Reduction& asked, mpi::Handle* request);

}  // namespace gradred::preload
