// Access to tensors of frameworks with DLPack's C interface (__dlpack_c_exchange_api__). It uses
// none of their Python attributes: some 30 ns instead of 1 us.
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "python/array.h"

namespace gradred {

// Describes a dense tensor in C order, in host or device memory. Of a tensor on a device it sets
// the calling thread's stream on that device, as in the driver, but not the memory. Returns nullopt
// for other objects and layouts, which the Python path handles.
std::optional<ShapedArray> tensor_view(PyObject* object);

// Describes the memory of a dense tensor in C order, in a capsule of DLPack, which keeps it alive.
// Returns nullopt for other capsules and for memory of devices.
std::optional<ArrayView> capsule_view(PyObject* capsule);

// Whether the tensor is a negated view, whose elements differ from those in memory. DLPack does not
// report it. Returns true as well if the object cannot tell; the Python path reports the error.
bool is_negated(PyObject* tensor);

// Reports a write to a tensor of the types of know_tensors() to autograd. Does nothing for other
// objects.
void tell_of_write(PyObject* object);
bool autograd_sees(PyObject* object);  // whether it is such a tensor

void bind_tensors(pybind11::module_& m);

}  // namespace gradred
