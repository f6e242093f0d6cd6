// Calls during which the ranks cannot yet exchange information: the first call on a communicator,
// or a call that the MPI carries out. Who is missing is derived from what the ranks of this host
// publish that they wait for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "liveness/lost_peers.h"
#include "mpi/mpi.h"

namespace gradred {

std::string among(int size);  // for texts about operations over messages
inline constexpr std::string_view kCarriedByMpi = "a non-blocking call that the MPI carries out";
// Whether no lower rank publishes that it waits in such a call. The lowest one reports it.
bool is_first_to_wait(const LocalPeers& peers, int rank, const WaitRecord& call);

// A call without a number: the ranks have not agreed on one yet, so it is identified by its kind.
struct UnnumberedCall {
  mpi::Handle comm;
  RankNames names;  // of the ranks of `comm`
  WaitRecord call;

  // record() adds to `call` the ranks of `comm` that do not publish that they wait in such a call.
  // missing() returns them as text: "; missing: rank 1 (...)".
  WaitRecord record() const;
  std::string missing() const;
};

// A blocking call that all ranks of `comm` must make before they can exchange information.
struct FirstCall {
  enum class Kind { kBlocks, kDuplicates };

  mpi::Handle comm;
  RankNames names;  // of the ranks of `comm`
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
