// Access to tensors of frameworks with DLPack's C interface (__dlpack_c_exchange_api__). It uses
// none of their Python attributes: some 30 ns instead of 1 us.
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

// A dense tensor with its elements in C order.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kUInt8;
  std::size_t count = 0;
  std::span<const std::int64_t> shape{};  // points into the tensor; valid until Python code runs
};

// Describes a tensor in host memory. Returns nullopt for other objects and layouts, which the
// Python path handles.
std::optional<TensorView> tensor_view(PyObject* object);

struct CudaTensorView : TensorView {
  std::uint64_t stream = 0;  // the calling thread's stream on that device, as in the driver
};
// Same for a tensor in CUDA device memory.
std::optional<CudaTensorView> cuda_tensor_view(PyObject* object);

void bind_tensors(pybind11::module_& m);

}  // namespace gradred
