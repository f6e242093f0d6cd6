// NumPy arrays, read directly: the buffer protocol with a format costs more than an 8-byte
// allreduce.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/types.h"

namespace gradred {

struct ArrayView {
  void* data;
  std::size_t count;
  DType dtype;
  bool writable;
};

// Loads NumPy's function table; false with a Python exception set.
bool load_numpy();
// A plain, dense, aligned array in native byte order whose type gradred knows; nothing for all
// others.
std::optional<ArrayView> view_of(PyObject* object);
bool is_array_type(PyTypeObject* type);  // NumPy's, or derived from it
// Of an array that view_of() knows: layout_hash() of its shape and order of axes.
std::uint64_t layout_of_plain(PyObject* array);
// Of an array: nothing unless its elements are in the order of the axes.
std::optional<std::span<const std::int64_t>> shape_in_order(PyObject* array);
// A new array of this shape, in the order of the axes, of the type of `array`; null with a Python
// exception set.
PyObject* new_shaped(PyObject* array, std::span<const std::int64_t> shape);
// A new array of its shape, type and order; null with a Python exception set.
PyObject* new_numpy_like(PyObject* array);
// A scalar of NumPy's as an array without axes; null for all else, and no exception is set.
PyObject* array_of_scalar(PyObject* object);
// The other way round, of an array with axes itself. Takes the reference.
PyObject* scalar_of(PyObject* array);

}  // namespace gradred
