// Communicators that the MPI knows nothing of: their state lies beside the null handle.
#pragma once

#include <Python.h>

namespace gradred {

class Communicator;

// The state of a shrunk communicator object; null if it is none, or freed.
Communicator* shrunk_state(PyObject* comm);

}  // namespace gradred
