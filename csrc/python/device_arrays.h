// Reads arrays of all kinds in C++: NumPy arrays directly, tensors by DLPack's C interface, and
// arrays in GPU memory also by their CUDA Array Interface.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "python/array.h"
#include "python/py_call.h"

namespace gradred {

// Describes a dense array in C order, of a type that gradred knows: a NumPy array, which may be
// empty, a tensor, or an array in GPU memory. Returns nullopt for other arrays, which the Python
// path handles. It also does so until the Python path has seen an array of this kind
// (device_options(), know_tensors(), know_device_arrays()). The caller holds the GIL. Runs the
// array's own Python code.
std::optional<ShapedArray> shaped_array_of(PyObject* object);
// Also accepts a dense NumPy array whose axes have any order in memory.
// It describes it to `array`, as a copy would take longer, and returns whether it can.
bool plain_array_of(PyObject* object, PlainArray& array);

// Makes a new array of the kind and type of `x`, where `x` is, in C order. Returns nullptr if it
// cannot; the Python path then makes one, or reports the error.
pybind11::object new_array(PyObject* x, std::span<const std::int64_t> shape);
// A new array with the shape of `x`. For NumPy arrays, the order of the axes is the same as well.
pybind11::object new_like(const pybind11::object& x);

// The device in whose memory an address lies. nullptr: the Python path has to find out.
DeviceMemory* device_memory_at(const void* address, std::size_t bytes);

// The placement of a call's arrays. `send` nullptr: the call is in place. `stream`: the call is in
// this stream's order, and does not follow the streams in which the program uses the arrays. There
// are two exceptions: the legacy default stream, which libraries make wait for what they export,
// and the stream of a new array. `host_waits`: the host waits for the stream's work.
Placement placement_of(const PlainArray* send, const PlainArray& recv,
                       std::optional<std::uint64_t> stream = {}, bool host_waits = false);

void bind_device_arrays(pybind11::module_& m);

}  // namespace gradred
