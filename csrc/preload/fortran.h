// Arguments of Fortran as those of C.
#pragma once

#include "mpi/mpi.h"
#include "preload/below.h"
#include "preload/library.h"

namespace gradred::preload {

// Has the MPI's own function of Fortran, which calls that of C, carry out a call. False if the MPI
// has no Fortran, or one that does not come back here. Begins in this process if that has not been
// done.
template <class Subroutine, class... Arguments>
bool went_on(Subroutine& below, const void* caller, Arguments... arguments) {
  const bool is_open_mpi =
      (process == Process::kRank || begin_in(caller)) && mpi::get().family == mpi::Family::kOpenMpi;
  if (is_open_mpi || !below.exists(caller)) return false;
  below(caller, arguments...);
  return true;
}

// The address of an array, or what stands for MPI_IN_PLACE or MPI_BOTTOM.
void* of_c(const void* address);

mpi::Handle comm_of_c(int comm);
mpi::Handle type_of_c(int type);
mpi::Handle op_of_c(int op);
int request_of_fortran(mpi::Handle request);

}  // namespace gradred::preload
