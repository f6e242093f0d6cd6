// gradred's errors as the program sees them: codes of the MPI, through the error handler of the
// communicator.
#pragma once

#include <exception>

#include "mpi/mpi.h"

namespace gradred::preload {

// Calls the communicator's error handler with a code whose text, by MPI_Error_string, is that of
// the error. Returns the code if the handler returns. A handler that ends the program does so after
// the text has been printed. Throws what the handler throws.
int raise_error(mpi::Handle comm, const std::exception_ptr& thrown);

}  // namespace gradred::preload
