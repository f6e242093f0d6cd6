// MPI_Finalize as mpi4py calls it.
#pragma once

#include <string>

namespace gradred {

// From now on finalize() of runtime/process.h stands in its place. `mpi4py` is the file of mpi4py's
// extension module, which calls it at the very end of Python, when nothing in Python can prevent it
// any more: so the word through which it calls is pointed at a function of ours. False where no
// such call is found.
bool take_over_finalize(const std::string& mpi4py);

}  // namespace gradred
