// Calls of which ranks can tell each other nothing yet, the first on a communicator or one that the
// MPI carries out: who is missing is what the ranks of this host show that they wait for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "liveness/lost_peers.h"
#include "mpi/mpi.h"

namespace gradred {

std::string among(int size);  // in texts of operations over messages
inline constexpr std::string_view kCarriedByMpi = "a non-blocking call that the MPI carries out";
// Whether no lower rank shows that it waits in such a call: the lowest is the one to report it.
bool is_first_to_wait(const LocalPeers& peers, int rank, const WaitRecord& call);

// A call that is known by what it is: the ranks have agreed on no number for it yet.
struct UnnumberedCall {
  mpi::Handle comm;
  RankNames names;  // of its ranks
  WaitRecord call;

  // The same with who of `comm` does not show that it waits in such a call, and that in words:
  // "; missing: rank 1 (...)".
  WaitRecord record() const;
  std::string missing() const;
};

// A blocking call that all ranks of `comm` must make before they can tell each other anything.
struct FirstCall {
  enum class Kind { kBlocks, kDuplicates };

  mpi::Handle comm;
  RankNames names;  // of its ranks
  int rank, size;
  Kind kind;

  WaitRecord record() const { return unnumbered().record(); }
  std::string waiter() const;
  std::string waits_for() const { return what() + unnumbered().missing(); }
  bool reports() const {
    return is_first_to_wait(known_local_peers(comm), rank, unnumbered().call);
  }
  std::string what() const;  // "the first call on ..."

 private:
  UnnumberedCall unnumbered() const;
};

}  // namespace gradred
