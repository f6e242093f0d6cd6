// Communicators that MPI does not know. Their MPI handle is null, and the object stores their
// state.
#pragma once

#include <Python.h>

namespace gradred {

class Communicator;

// The state of such a communicator. nullptr: it is another object, or it has been freed.
Communicator* memory_comm_state(PyObject* comm);

}  // namespace gradred
