// The methods of gradred.Comm that must cost next to nothing.
#pragma once

#include <Python.h>

namespace gradred {

// Puts them on the class, as method descriptors.
void add_methods(PyTypeObject* comm_class);

}  // namespace gradred
