// Replacements of mpi4py's calls to MPI_Init_thread and MPI_Finalize.
#pragma once

#include <string>

namespace gradred {

// Makes mpi4py call finalize() of runtime/rank_process.h instead of MPI_Finalize. `mpi4py` is the
// path of mpi4py's extension module. It calls MPI_Finalize at the very end of Python, when no
// Python code can prevent it. So this function changes the pointer through which the module calls
// it. Returns false if it finds no such pointer.
bool take_over_finalize(const std::string& mpi4py);

// Makes mpi4py release the GIL while it is in MPI_Init_thread, where it waits for other ranks.
// Returns false if it finds no such call.
bool release_gil_in_init(const std::string& mpi4py);

}  // namespace gradred
