// The end of a process whose peers are lost or stuck.
#pragma once

#include <string>

namespace gradred {

// From now on this process ends without MPI_Finalize, which would wait for peers that never come,
// and without the destructors of the MPI's libraries: with the status it would have had. `mpi4py`
// is the file of mpi4py's extension module, which calls MPI_Finalize at the very end of Python.
// Throws TransportError where the call cannot be found there.
void leave_without_finalize(const std::string& mpi4py);

}  // namespace gradred
