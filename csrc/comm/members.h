// The ranks of a communicator on this host, as far as this process has met theirs before: what they
// show that they wait for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/lost.h"
#include "mpi/mpi.h"

namespace gradred {

std::string among(int size);  // in texts of operations over messages
inline constexpr std::string_view kCarriedByMpi = "a non-blocking call that the MPI carries out";
// Peers, by their ranks in `comm`. Local.
Neighbours known_members(mpi::Handle comm);
// Whether no lower rank shows that it waits in `what`: the lowest is the one to report it.
bool is_first_to_wait(const Neighbours& members, int rank, std::string_view what);

// What a peer that is missed does. One whose first call on a communicator of this size is of
// another kind than this rank's, may never come.
std::string state_of_missed(const ProcessId& process, int size);

// "; missing: rank 1 (...)": who of `comm` does not show that it waits in `what`.
std::string missing_from(mpi::Handle comm, int size, std::string_view what);

// A blocking call that all ranks of `comm` must make before they can tell each other anything.
struct FirstCall {
  enum class Kind { kBlocks, kDuplicates };

  mpi::Handle comm;
  int rank, size;
  Kind kind;

  std::string text(std::uint64_t waited) const;
  bool reports() const { return is_first_to_wait(known_members(comm), rank, what()); }
  std::string what() const;  // "in the first call on ..."
};

}  // namespace gradred
