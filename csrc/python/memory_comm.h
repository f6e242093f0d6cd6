// Communicators that MPI does not know. All have the handle MPI_COMM_NULL. So the object keeps its
// state in a slot, as a capsule with a shared pointer.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace gradred {

class Communicator;

// The state of such a communicator. nullptr: it is another object, or it has been freed.
Communicator* memory_comm_state(PyObject* comm);

pybind11::capsule memory_comm_capsule(std::shared_ptr<Communicator> state);

}  // namespace gradred
