// Base class of gradred.Request, for a low overhead of starting and waiting.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "engine/generalized_request.h"
#include "python/py_operation.h"

namespace gradred {

class Communicator;

// Makes a class derived from `request` (MPI.Request). Its instances hold an operation and the
// memory that it uses.
pybind11::object request_type(const pybind11::object& request);

// Registers gradred.Request, which is derived from that class.
void use_request_class(const pybind11::object& request_class);

// Whether the operation has ended without an error and without a request, so that the request that
// make_request() makes for it keeps nothing alive.
bool ended_at_once(const StartedOperation* operation);

// Makes a request for a started operation, or for one that has completed if `operation` is nullptr.
// Returns a new reference, or nullptr with a Python error. The request keeps alive what the
// operation reads and writes while that is in flight.
PyObject* make_request(std::shared_ptr<StartedOperation> operation, PyObject* send, PyObject* recv);

// Makes a request of gradred's class for one of the MPI's. Returns as make_request() does.
PyObject* wrap_request(PyObject* of_mpi, PyObject* send, PyObject* recv);

// Called after a call has been started. Warns once if MPI carries out the communicator's
// nonblocking calls, as no blocking call has come first. It is a Python warning that names the
// program's line. The call has begun and cannot fail any more: if warnings are errors, the
// warning goes to sys.unraisablehook.
void warn_if_left_to_mpi(Communicator& comm);

// The request, in an object of mpi4py's, of an operation that had ended before it had a request. A
// program that asks the MPI finds it complete. open_ended() throws TransportError. drop_ended() is
// for an object that goes away, and does nothing if the request is not open.
void open_ended(PyObject* request, EndedRequest& ended);
void release_ended(PyObject* request, EndedRequest& ended, void* status);
void drop_ended(PyObject* request, EndedRequest& ended);

// The argument `status` of Wait and Test, as a borrowed reference. nullptr: a Python error is set.
PyObject* status_argument(PyObject* const* args, Py_ssize_t nargs, PyObject* names);
// Calls mpi4py's method Wait or Test, unless the request is null and nobody wants the status.
PyObject* ask_mpi(PyObject* request, PyObject* method, PyObject* status);

// Completes MPI's part of a request whose operation has ended. The GIL is held throughout, so that
// of several waiting threads one frees the handle.
void release_handle(PyObject* request, const PyOperation& operation, void* status);

// The address of a status for MPI; None: the program wants none. Throws if it is no status.
void* address_of_status(PyObject* status);

void bind_request(pybind11::module_& m);

}  // namespace gradred
