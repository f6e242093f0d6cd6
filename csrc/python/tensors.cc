#include "python/tensors.h"

#include <algorithm>
#include <array>
#include <string>

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
PyObject* increment_versions = nullptr;  // of a sequence of tensors

// Functions of PyTorch's library, which take the address of an at::Tensor.
struct TensorFunctions {
  std::size_t offset = 0;  // of the at::Tensor in an object
  bool (*is_negated)(const void*) = nullptr;
  bool (*is_inference)(const void*) = nullptr;
  void (*increment_version)(const void*) = nullptr;
};
TensorFunctions of_torch;  // nullptr: Python's functions do the same, and take longer

const void* tensor_in(PyObject* object) {
  return reinterpret_cast<const std::byte*>(object) + of_torch.offset;
}

bool is_known(PyObject* object) { return std::ranges::find(types, Py_TYPE(object)) != types.end(); }

std::optional<DType> dtype_of(int code, int bits, int lanes) {
  for (const DTypeInfo& info : kDTypeInfo) {
    const bool same = info.dlpack == code && 8 * info.bytes == static_cast<std::size_t>(bits);
    if (same && lanes == 1) return info.dtype;
  }
  return std::nullopt;
}

// Registers the types. Returns whether they have such an interface. All arguments and the interface
// live as long as the process.
bool know_tensors(const py::object& tensor, const py::object& parameter,
                  const py::object& increment, std::size_t offset, std::uintptr_t is_negated,
                  std::uintptr_t is_inference, std::uintptr_t increment_version) {
  types = {reinterpret_cast<PyTypeObject*>(py::object(tensor).release().ptr()),
           reinterpret_cast<PyTypeObject*>(py::object(parameter).release().ptr())};
  increment_versions = py::object(increment).release().ptr();
  of_torch = {offset, reinterpret_cast<bool (*)(const void*)>(is_negated),
              reinterpret_cast<bool (*)(const void*)>(is_inference),
              reinterpret_cast<void (*)(const void*)>(increment_version)};
  known_api = nullptr;
  const py::object capsule = py::getattr(tensor, "__dlpack_c_exchange_api__", py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return false;
  const auto* api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->major != kDlpackMajor) api = api->previous;
  if (api == nullptr || api->look == nullptr) return false;
  known_api = api;
  return true;
}

std::optional<DlTensor> look_at(PyObject* object) {
  if (known_api == nullptr || !is_known(object)) return std::nullopt;
  DlTensor tensor{};
  if (known_api->look(object, &tensor) == 0) return tensor;
  PyErr_Clear();  // the Python path reports the error
  return std::nullopt;
}

// ---- capsules -----------------------------------------------------------------------------------

// What a capsule holds since version 1.0. Before, it held the tensor first.
struct VersionedTensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  DlTensor tensor;
};

// NumPy's or ml_dtypes' name of an element type, or a text for one that gradred does not know.
std::string type_text(int code, int bits, int lanes) {
  if (const auto known = dtype_of(code, bits, lanes)) return std::string(name_of(*known));
  constexpr std::array<const char*, 6> kKinds = {"int",    "uint",   "float",
                                                 "handle", "bfloat", "complex"};
  const auto index = static_cast<std::size_t>(code);
  const std::string kind =
      index < kKinds.size() ? kKinds[index] : "type " + std::to_string(code) + " of ";
  return (lanes == 1 ? "" : std::to_string(lanes) + " times ") + kind + std::to_string(bits);
}

struct InCapsule {
  const DlTensor* tensor;  // nullptr: there is none, and a Python error is set
  bool writable;
};

InCapsule look_into(PyObject* capsule) {
  constexpr const char* kVersioned = "dltensor_versioned";
  constexpr std::uint64_t kReadOnly = 1, kIsCopied = 2;  // a result in a copy would be lost
  const bool versioned = PyCapsule_IsValid(capsule, kVersioned) != 0;
  const void* const held = PyCapsule_GetPointer(capsule, versioned ? kVersioned : "dltensor");
  if (!versioned) return {static_cast<const DlTensor*>(held), true};
  const auto* const newer = static_cast<const VersionedTensor*>(held);
  return {&newer->tensor, (newer->flags & (kReadOnly | kIsCopied)) == 0};
}

py::tuple read_dlpack(const py::object& capsule) {
  const InCapsule held = look_into(capsule.ptr());
  if (held.tensor == nullptr) throw py::error_already_set();
  const DlTensor& tensor = *held.tensor;
  int code = tensor.code, bits = tensor.bits, lanes = tensor.lanes;
  if (code == 2 && lanes == 2) {  // the form of complex numbers before version 1.0
    code = 5, bits *= 2, lanes = 1;
  }
  const std::int64_t itemsize = bits * lanes / 8;
  const auto axes = static_cast<std::size_t>(tensor.axes);
  py::tuple shape(axes), strides(tensor.strides != nullptr ? axes : 0);
  for (std::size_t axis = 0; axis < axes; ++axis) {
    shape[axis] = py::int_(tensor.shape[axis]);
    if (tensor.strides != nullptr) strides[axis] = py::int_(tensor.strides[axis] * itemsize);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  return py::make_tuple(
      tensor.device, address != 0 ? address + tensor.byte_offset : 0, type_text(code, bits, lanes),
      shape, tensor.strides != nullptr ? py::object(strides) : py::none(), itemsize, held.writable);
}

// On whatever device.
std::optional<ShapedArray> view_of(const DlTensor& tensor) {
  if (tensor.axes > static_cast<std::int32_t>(ShapedArray::kMostAxes)) return std::nullopt;
  const auto dtype = dtype_of(tensor.code, tensor.bits, tensor.lanes);
  const std::span<const std::int64_t> shape(tensor.shape, static_cast<std::size_t>(tensor.axes));
  const auto layout = layout_of(shape, tensor.strides, 1);
  if (!dtype || !layout || !layout->by_rows) return std::nullopt;
  // A tensor without data is one whose storage was freed. The Python path reports the error.
  if (layout->count > 0 && tensor.data == nullptr) return std::nullopt;
  ShapedArray view{};
  static_cast<ArrayView&>(view) = {static_cast<std::byte*>(tensor.data) + tensor.byte_offset,
                                   layout->count, *dtype, true};
  view.axes = shape.size();
  std::ranges::copy(shape, view.lengths.begin());
  return view;
}

}  // namespace

std::optional<ArrayView> capsule_view(PyObject* capsule) {
  const InCapsule held = look_into(capsule);
  if (held.tensor == nullptr) PyErr_Clear();
  if (held.tensor == nullptr || held.tensor->device != kHostDevice) return std::nullopt;
  std::optional<ArrayView> view = view_of(*held.tensor);
  if (view) view->writable = held.writable;
  return view;
}

std::optional<ShapedArray> tensor_view(PyObject* object) {
  constexpr int kComplex = 5;  // complex tensors may be conjugated
  const auto tensor = look_at(object);
  if (!tensor || tensor->code == kComplex) return std::nullopt;
  auto view = view_of(*tensor);
  if (!view || tensor->device == kHostDevice) return view;
  void* stream = nullptr;
  if (tensor->device != kCudaDevice || known_api->work_stream == nullptr) return std::nullopt;
  if (known_api->work_stream(tensor->device, tensor->device_id, &stream) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  // PyTorch calls the legacy default stream 0.
  view->stream = stream != nullptr ? reinterpret_cast<std::uint64_t>(stream) : kLegacyStream;
  return view;
}

bool is_negated(PyObject* tensor) {
  if (of_torch.is_negated != nullptr && is_known(tensor)) {
    return of_torch.is_negated(tensor_in(tensor));
  }
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* const found = PyObject_CallMethodNoArgs(tensor, is_neg);
  if (found == nullptr) PyErr_Clear();
  Py_XDECREF(found);
  return found != Py_False;
}

bool autograd_sees(PyObject* object) { return is_known(object); }

void tell_of_write(PyObject* object) {
  if (!is_known(object)) return;
  if (of_torch.increment_version != nullptr) {
    const void* const tensor = tensor_in(object);
    if (!of_torch.is_inference(tensor)) of_torch.increment_version(tensor);
    return;
  }
  const auto written = py::reinterpret_steal<py::object>(PyTuple_Pack(1, object));
  PyObject* const done = written ? PyObject_CallOneArg(increment_versions, written.ptr()) : nullptr;
  if (done == nullptr) throw py::error_already_set();
  Py_DECREF(done);
}

void bind_tensors(py::module_& m) {
  m.def("read_dlpack", &read_dlpack, py::arg("capsule"),
        "Of the tensor in a capsule of DLPack: DLDeviceType, address, element type, shape, strides "
        "in bytes (None: C order), bytes of an element, and whether it is writable.");
  m.def("know_tensors", &know_tensors, py::arg("tensor"), py::arg("parameter"),
        py::arg("increment_versions"), py::arg("offset") = 0, py::arg("is_negated") = 0,
        py::arg("is_inference") = 0, py::arg("increment_version") = 0,
        "From now on objects of these types are looked at by DLPack's interface for C; False: they "
        "have none. The function tells autograd that a sequence of them is written. The addresses "
        "of C++ functions that do so for one at::Tensor, `offset` bytes into the object; 0: none.");
  m.def(
      "tell_of_write", [](const py::object& object) { tell_of_write(object.ptr()); },
      py::arg("object"),
      "Tell autograd of a write, if the object is one of the tensors of know_tensors().");
}

}  // namespace gradred
