// Arguments of Fortran as those of C.
#pragma once

#include "mpi/mpi.h"
#include "preload/below.h"
#include "preload/library.h"

namespace gradred::preload {

// Whether a call of Fortran goes on to the MPI's own function of Fortran, which calls that of C.
// Begins in this process if that has not been done. False if the MPI has no Fortran.
template <class Subroutine>
bool goes_on_in_fortran(Subroutine& below, const void* caller) {
  const bool is_open_mpi =
      (process == Process::kRank || begin_in(caller)) && mpi::get().family == mpi::Family::kOpenMpi;
  return !is_open_mpi && below.exists(caller);
}

// The address of an array, or what stands for MPI_IN_PLACE or MPI_BOTTOM.
void* of_c(const void* address);

mpi::Handle comm_of_c(int comm);
mpi::Handle type_of_c(int type);
mpi::Handle op_of_c(int op);
int request_of_fortran(mpi::Handle request);

}  // namespace gradred::preload
