#include "mpi/world_ranks.h"

#include <algorithm>
#include <numeric>

namespace gradred::mpi {

std::vector<int> world_ranks(Handle comm) {
  const Mpi& mpi = get();
  Handle group = 0, world = 0;
  int size = 0;
  mpi.check(mpi.call.Comm_group(comm, &group), "MPI_Comm_group");
  mpi.check(mpi.call.Comm_group(mpi.is.comm_world, &world), "MPI_Comm_group");
  mpi.check(mpi.call.Group_size(group, &size), "MPI_Group_size");
  std::vector<int> ranks(static_cast<std::size_t>(size)), translated(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  mpi.check(mpi.call.Group_translate_ranks(group, size, ranks.data(), world, translated.data()),
            "MPI_Group_translate_ranks");
  mpi.call.Group_free(&group);
  mpi.call.Group_free(&world);
  // Ranks outside MPI_COMM_WORLD (spawned or connected) have no common numbering.
  if (std::ranges::find(translated, mpi.is.undefined) != translated.end()) translated.clear();
  return translated;
}

}  // namespace gradred::mpi
