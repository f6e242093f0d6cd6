// NumPy arrays, read directly: the buffer protocol with a format costs more than an 8-byte
// allreduce.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <optional>

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
// A new array of its shape, type and order; null with a Python exception set.
PyObject* new_like(PyObject* array);

}  // namespace gradred
