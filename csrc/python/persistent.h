// Base class of PersistentAllreduce, for a low overhead of p().
#pragma once

#include <pybind11/pybind11.h>

namespace gradred {

// A class derived from `prequest` (MPI.Prequest) whose instances can be called.
pybind11::object persistent_type(const pybind11::object& prequest);

}  // namespace gradred
