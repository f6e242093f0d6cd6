// Base class of PersistentAllreduce, for a low overhead of p().
#pragma once

#include <pybind11/pybind11.h>

namespace gradred {

// A class derived from `prequest` (MPI.Prequest) whose instances can be called.
pybind11::object persistent_type(const pybind11::object& prequest);

// Sets a method of a type that Python code cannot change: of all programs in this process that use
// the type.
void replace_method(const pybind11::type& type, const pybind11::str& name,
                    const pybind11::object& method);

}  // namespace gradred
