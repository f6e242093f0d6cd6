// Reads arrays of all kinds in C++: NumPy arrays directly, tensors by DLPack's C interface, and
// arrays in GPU memory also by their CUDA Array Interface.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "python/numpy.h"
#include "python/py_call.h"

namespace gradred {

// An array in host or device memory that C++ code can read without the Python path.
struct PlainArray : ArrayView {
  DeviceMemory* memory = nullptr;         // nullptr: host memory
  std::optional<std::uint64_t> stream{};  // stream in which the program uses a device array
};

// A plain array with its elements in C order.
struct ShapedArray : PlainArray {
  static constexpr std::size_t kMostAxes = 8;

  std::array<std::int64_t, kMostAxes> lengths{};
  std::size_t axes = 0;

  std::span<const std::int64_t> shape() const { return {lengths.data(), axes}; }
  std::uint64_t layout() const;  // layout_hash() of shape and order
};

// Describes a dense, non-empty array in GPU memory, in C order and of a type that gradred knows.
// Returns nullopt for other arrays, which the Python path handles. It also does so until the Python
// path has seen an array of this kind (device_options(), know_tensors(), know_device_arrays()). The
// caller holds the GIL. Runs the array's own Python code.
std::optional<ShapedArray> device_array_of(PyObject* object);
// Also accepts a NumPy array, which may be empty, and a tensor in host memory.
std::optional<ShapedArray> shaped_array_of(PyObject* object);
// Also accepts a dense NumPy array whose axes have any order in memory.
std::optional<PlainArray> plain_array_of(PyObject* object);

// Makes a new array in host memory of the kind and type of `x`, in C order. Returns nullptr if the
// library of `x` raises an error; the Python path then reports it.
pybind11::object new_array(PyObject* x, std::span<const std::int64_t> shape);
// A new array with the shape of `x`. For NumPy arrays, the order of the axes is the same as well.
pybind11::object new_like(const pybind11::object& x);

// The device in whose memory an address lies. nullptr: the Python path has to find out.
DeviceMemory* device_memory_at(const void* address, std::size_t bytes);

// The placement of a call's arrays. `send` nullptr: the call is in place.
Placement placement_of(const PlainArray* send, const PlainArray& recv);

void bind_device_arrays(pybind11::module_& m);

}  // namespace gradred
