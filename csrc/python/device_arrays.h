// Arrays of any kind, read directly: NumPy's, tensors by DLPack's interface for C, those in a GPU's
// memory also by one look at their CUDA Array Interface.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "python/call.h"
#include "python/numpy.h"

namespace gradred {

// An array that needs no closer look, wherever it lies.
struct PlainArray : ArrayView {
  DeviceMemory* memory = nullptr;         // null: the host's
  std::optional<std::uint64_t> stream{};  // in which the program works on a device's
};

// One in the order of its axes.
struct ShapedArray : PlainArray {
  static constexpr std::size_t kMostAxes = 8;

  std::array<std::int64_t, kMostAxes> lengths{};
  std::size_t axes = 0;

  std::span<const std::int64_t> shape() const { return {lengths.data(), axes}; }
  std::uint64_t layout() const;  // layout_hash() of shape and order
};

// A dense one with elements, in the order of its axes and of a type that gradred knows; nothing for
// all others, and where a first look at such an array has yet to be taken (device_options(),
// know_tensors(), know_device_arrays()). With the GIL; runs what Python code the array has for it.
std::optional<ShapedArray> device_array_of(PyObject* object);
// The same of a NumPy array, which may have no elements, a tensor in host memory, or such an array.
std::optional<ShapedArray> shaped_array_of(PyObject* object);
// The same of a dense NumPy array whose axes have any order, or one of the others.
std::optional<PlainArray> plain_array_of(PyObject* object);

// A new array in host memory of the kind and type of `x`, in the order of its axes. Null where its
// library has none to give: the closer look says why.
pybind11::object new_array(PyObject* x, std::span<const std::int64_t> shape);
// The same of the shape of `x`; of NumPy's arrays in their order of axes, too.
pybind11::object new_like(const pybind11::object& x);

// The device in whose memory an address lies; null: that takes a closer look.
DeviceMemory* device_memory_at(const void* address, std::size_t bytes);

// Of a call; `send` null: in place.
Placement placement_of(const PlainArray* send, const PlainArray& recv);

void bind_device_arrays(pybind11::module_& m);

}  // namespace gradred
