// The base of gradred.Request: what makes starting and waiting cheap.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "python/operation.h"

namespace gradred {

class Communicator;

// A class derived from `request` (MPI.Request) whose instances hold an operation and the memory
// that it works on.
pybind11::object request_type(const pybind11::object& request);

// gradred.Request, derived from that, and what keeps memory alive that an operation still uses when
// its request has gone: keep_alive(operation, memory), in the dictionary `kept`, until
// let_ended_go() finds that the operation has ended.
void use_request_class(const pybind11::object& request_class, const pybind11::object& keep_alive,
                       const pybind11::object& let_ended_go, const pybind11::dict& kept);

// An instance for an operation that has been started: a new reference, or null with a Python error.
// No operation: it has ended well.
// It holds what the operation reads and writes as long as that is in flight.
PyObject* make_request(std::shared_ptr<StartedOperation> operation, PyObject* send, PyObject* recv);

// After a call has been started: tells the program once that no blocking call has come first. A
// warning of Python's, for the caller that many frames above. It ends no call that has begun: where
// warnings are errors it goes to sys.unraisablehook.
void warn_if_left_to_mpi(Communicator& comm, int frames);

void bind_request(pybind11::module_& m);

}  // namespace gradred
