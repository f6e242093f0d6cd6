// Arrays in a GPU's memory, read directly: by DLPack's interface for C, or by one look at their
// CUDA Array Interface.
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

struct DeviceArray : PlainArray {
  static constexpr std::size_t kMostAxes = 8;

  std::array<std::int64_t, kMostAxes> lengths{};
  std::size_t axes = 0;

  std::span<const std::int64_t> shape() const { return {lengths.data(), axes}; }
};

// A dense one with elements, in the order of its axes and of a type that gradred knows; nothing for
// all others, and where a first look at such an array has yet to be taken (device_options(),
// know_device_arrays()). With the GIL; runs what Python code the array has for it.
std::optional<DeviceArray> device_array_of(PyObject* object);

// Of a NumPy array, or that.
inline std::optional<PlainArray> plain_array_of(PyObject* object) {
  if (const auto on_host = view_of(object)) return PlainArray{*on_host};
  const auto on_device = device_array_of(object);
  return on_device ? std::optional<PlainArray>(*on_device) : std::nullopt;
}

// The device in whose memory an address lies; null: that takes a closer look.
DeviceMemory* device_memory_at(const void* address, std::size_t bytes);

// Of a call; `send` null: in place.
Placement placement_of(const PlainArray* send, const PlainArray& recv);

void bind_device_arrays(pybind11::module_& m);

}  // namespace gradred
