#include "calls/place_among_all.h"

#include <optional>

#include "calls/settings.h"
#include "mpi/mpi.h"

namespace gradred {

PlaceAmongAll place_among_all(int rank, int size) {
  const mpi::Mpi& mpi = mpi::get();
  int finalized = 0;
  mpi.call.Finalized(&finalized);
  PlaceAmongAll found{0, 1};
  if (mpi::initialized() && finalized == 0) {
    mpi.check(mpi.call.Comm_rank(mpi.is.comm_world, &found.rank), "MPI_Comm_rank");
    mpi.check(mpi.call.Comm_size(mpi.is.comm_world, &found.size), "MPI_Comm_size");
  }
  if (found.size > 1) return found;  // an MPI of one process knows no others
  const std::optional<RankOfJob> of_job = settings().rank_of_job;
  return of_job && of_job->size >= size ? PlaceAmongAll{of_job->rank, of_job->size}
                                        : PlaceAmongAll{rank, size};
}

}  // namespace gradred
