// Reductions of Python buffers. A buffer of any item type is taken as bytes.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "base/errors.h"
#include "base/types.h"
#include "python/gil.h"
#include "reduce/reduce.h"

namespace gradred {

// Number of elements in a buffer, which must be contiguous.
inline std::size_t count_of(const pybind11::buffer_info& info, DType dtype) {
  const auto bytes = static_cast<std::size_t>(info.size * info.itemsize);
  if (info.ndim != 1 || info.strides[0] != info.itemsize || bytes % size_of(dtype) != 0) {
    throw UsageError("expected contiguous bytes, whole elements of " + std::string(name_of(dtype)) +
                     ", in one dimension; got " + std::to_string(bytes) + " bytes");
  }
  return bytes / size_of(dtype);
}

inline void require_count(const pybind11::buffer_info& info, DType dtype, std::size_t count) {
  if (count_of(info, dtype) != count) throw UsageError("inputs and target differ in size");
}

inline void reduce_buffers(const ReduceFunctions& functions, DType dtype,
                           const pybind11::buffer& target, const pybind11::buffer& a,
                           const pybind11::buffer& b) {
  const pybind11::buffer_info out = target.request(true);
  const pybind11::buffer_info first = a.request();
  const pybind11::buffer_info second = b.request();
  const std::size_t count = count_of(out, dtype);
  require_count(first, dtype, count);
  require_count(second, dtype, count);
  const WithoutGil released;
  functions.pair(out.ptr, first.ptr, second.ptr, count);
}

}  // namespace gradred
