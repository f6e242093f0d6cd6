#include "python/tensors.h"

#include <algorithm>
#include <array>

namespace gradred {
namespace {

namespace py = pybind11;

// DLPack's structures, which are stable within a major version.
constexpr std::uint32_t kDlpackMajor = 1;
constexpr std::int32_t kHostDevice = 1, kCudaDevice = 2;

struct DlTensor {
  void* data;
  std::int32_t device, device_id, axes;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* previous;
  void* allocate;
  void* to_managed;
  void* from_managed;
  int (*look)(void* object, DlTensor* out);  // 0: no error; else a Python error is set
  int (*work_stream)(std::int32_t device, std::int32_t device_id, void** stream);
};

// The types that `look` accepts. Subclasses are not included, as they may mean something else.
std::array<PyTypeObject*, 2> types{};
const ExchangeApi* known_api = nullptr;

std::optional<DType> dtype_of(const DlTensor& tensor) {
  if (tensor.lanes != 1) return std::nullopt;
  for (const DTypeInfo& info : kDTypeInfo) {
    const bool same = info.dlpack == tensor.code && 8 * info.bytes == tensor.bits;
    if (same && info.kind != DTypeKind::kComplex)
      return info.dtype;  // complex tensors may be conjugated
  }
  return std::nullopt;
}

bool is_in_order(const DlTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t next = 1;
  for (std::int32_t axis = tensor.axes; axis-- > 0;) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != next) return false;
    next *= tensor.shape[axis];
  }
  return true;
}

// Registers the types. Returns whether they have such an interface. Types and interface live as
// long as the process.
bool know_tensors(const py::object& tensor, const py::object& parameter) {
  const py::object capsule = py::getattr(tensor, "__dlpack_c_exchange_api__", py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return false;
  const auto* api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->major != kDlpackMajor) api = api->previous;
  if (api == nullptr || api->look == nullptr) return false;
  types = {reinterpret_cast<PyTypeObject*>(py::object(tensor).release().ptr()),
           reinterpret_cast<PyTypeObject*>(py::object(parameter).release().ptr())};
  known_api = api;
  return true;
}

std::optional<DlTensor> look_at(PyObject* object) {
  if (known_api == nullptr || std::ranges::find(types, Py_TYPE(object)) == types.end()) {
    return std::nullopt;
  }
  DlTensor tensor{};
  if (known_api->look(object, &tensor) == 0) return tensor;
  PyErr_Clear();  // the Python path reports the error
  return std::nullopt;
}

std::optional<TensorView> view_of_dense(const DlTensor& tensor) {
  const auto dtype = dtype_of(tensor);
  if (!dtype || !is_in_order(tensor)) return std::nullopt;
  TensorView view{.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset,
                  .dtype = *dtype,
                  .count = 1,
                  .shape = {tensor.shape, static_cast<std::size_t>(tensor.axes)}};
  for (const std::int64_t length : view.shape) view.count *= static_cast<std::size_t>(length);
  // A tensor whose storage was freed. The Python path reports the error.
  if (tensor.data == nullptr && view.count > 0) return std::nullopt;
  return view;
}

}  // namespace

std::optional<TensorView> tensor_view(PyObject* object) {
  const auto tensor = look_at(object);
  if (!tensor || tensor->device != kHostDevice) return std::nullopt;
  return view_of_dense(*tensor);
}

std::optional<CudaTensorView> cuda_tensor_view(PyObject* object) {
  constexpr std::uint64_t kLegacyStream = 1;  // PyTorch calls it 0
  const auto tensor = look_at(object);
  if (!tensor || tensor->device != kCudaDevice || known_api->work_stream == nullptr) {
    return std::nullopt;
  }
  const auto view = view_of_dense(*tensor);
  void* stream = nullptr;
  if (!view || known_api->work_stream(tensor->device, tensor->device_id, &stream) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  CudaTensorView made{*view};
  made.stream = stream != nullptr ? reinterpret_cast<std::uint64_t>(stream) : kLegacyStream;
  return made;
}

void bind_tensors(py::module_& m) {
  m.def("know_tensors", &know_tensors, py::arg("tensor"), py::arg("parameter"),
        "From now on objects of these types are looked at by DLPack's interface for C; False: they "
        "have none.");
}

}  // namespace gradred
