// Communicators that the MPI knows nothing of: their state lies beside the null handle.
#pragma once

#include <Python.h>

namespace gradred {

class Communicator;

// The state of such a communicator object; null if it is none, or freed.
Communicator* memory_comm_state(PyObject* comm);

}  // namespace gradred
