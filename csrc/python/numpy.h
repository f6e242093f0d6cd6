// Direct access to NumPy arrays. The buffer protocol with a format takes longer than an 8-byte
// allreduce.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "python/array.h"

namespace gradred {

// Loads NumPy's function table. Returns false with a Python exception set.
bool load_numpy();
// Describes a plain, dense, aligned array in native byte order whose type gradred knows. Returns
// nullopt for all other objects.
std::optional<ArrayView> view_of(PyObject* object);
// The same for the path of each call, on which a copy of the description would take longer than
// making it. Returns false for all other objects.
bool view_array(PyObject* object, ArrayView& view);
// The bytes of such an array whose type gradred does not know, but the MPI does, and NumPy's number
// of the type: long double, real or complex. Returns false for all other objects.
bool view_bytes(PyObject* object, ArrayView& view, int& type);
bool is_array_type(PyTypeObject* type);  // whether it is numpy.ndarray or derived from it
// ArrayLayout::hash of an array that view_of() accepts.
std::uint64_t layout_of_plain(PyObject* array);
// The shape of an array. Returns nullopt unless its elements are in C order.
std::optional<std::span<const std::int64_t>> shape_in_order(PyObject* array);
// Makes an array of this shape in C order, with the type of `array`. Returns nullptr with a Python
// exception set.
PyObject* new_shaped(PyObject* array, std::span<const std::int64_t> shape);
// Makes an array like `array`, with its order of axes. Returns nullptr with a Python exception set.
PyObject* new_numpy_like(PyObject* array);
// A NumPy scalar as an array without axes. Returns nullptr for other objects, without an exception.
PyObject* array_of_scalar(PyObject* object);
// An array without axes as a scalar; an array with axes stays as it is. Takes the reference.
PyObject* scalar_of(PyObject* array);

}  // namespace gradred
