// The methods of gradred.Comm whose overhead must be small.
#pragma once

#include <Python.h>

namespace gradred {

// Adds the methods to the class as method descriptors. `by_name` has a Python function for each
// method: the Python path, which handles arguments that the C++ code does not accept.
void add_methods(PyTypeObject* comm_class, PyObject* by_name);

// Whether it is an MPI.Intracomm. Once add_methods() has been called.
bool is_intracommunicator(PyObject* object);

}  // namespace gradred
