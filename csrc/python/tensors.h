// Tensors of a framework whose type has DLPack's interface for C (__dlpack_c_exchange_api__),
// looked at without any of their Python attributes: some 30 ns instead of 1 us.
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/types.h"

namespace gradred {

// Dense, its elements in the order of its axes.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kUInt8;
  std::size_t count = 0;
  std::span<const std::int64_t> shape{};  // the tensor's, as long as nobody else runs Python
};

// In host memory. Nothing where it takes a closer look: it is none of these types, or lies
// otherwise.
std::optional<TensorView> tensor_view(PyObject* object);

struct CudaTensorView : TensorView {
  std::uint64_t stream = 0;  // of the calling thread on that device, as the driver calls it
};
// The same in a CUDA device's memory.
std::optional<CudaTensorView> cuda_tensor_view(PyObject* object);

void bind_tensors(pybind11::module_& m);

}  // namespace gradred
