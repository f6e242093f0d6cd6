#include "python/device_arrays.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "device/location.h"
#include "device/readable.h"
#include "python/device_options.h"
#include "python/gil.h"
#include "python/numpy.h"
#include "python/py_errors.h"
#include "python/tensors.h"

namespace gradred {
namespace {

namespace py = pybind11;

// ---- tensors ------------------------------------------------------------------------------------

// Clears an error of the array's own Python code, which the Python path raises again. Ctrl-C is
// rethrown.
void clear_error() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) {
    throw PythonError{};
  }
  PyErr_Clear();
}

py::object attribute_of(PyObject* object, PyObject* name) {
  return py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
}
py::object called(PyObject* object, PyObject* method) {
  return py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object, method));
}
std::optional<std::int64_t> whole_number(PyObject* object) {
  if (object == nullptr || !PyLong_CheckExact(object)) return std::nullopt;
  const std::int64_t number = PyLong_AsLongLong(object);
  if (number != -1 || PyErr_Occurred() == nullptr) return number;
  PyErr_Clear();
  return std::nullopt;
}

// Whether the memory holds the tensor's elements as they are. It returns false if autograd would
// miss the call, if the tensor is a negated view, or if the storage is smaller than the shape (as
// in FSDP). The Python path then reports the error.
bool is_as_it_lies(PyObject* tensor, std::size_t bytes, std::size_t itemsize) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  static PyObject* const untyped_storage = PyUnicode_InternFromString("untyped_storage");
  static PyObject* const nbytes = PyUnicode_InternFromString("nbytes");
  static PyObject* const storage_offset = PyUnicode_InternFromString("storage_offset");
  bool plain = attribute_of(tensor, requires_grad).ptr() == Py_False && !is_negated(tensor);
  if (plain) {
    const py::object storage = called(tensor, untyped_storage);
    const auto held = whole_number(storage ? called(storage.ptr(), nbytes).ptr() : nullptr);
    clear_error();  // no Python function may be called with an error set
    const auto offset = whole_number(called(tensor, storage_offset).ptr());
    clear_error();
    plain =
        held && offset &&
        *offset * static_cast<std::int64_t>(itemsize) + static_cast<std::int64_t>(bytes) <= *held;
  }
  clear_error();
  return plain;
}

// ---- the CUDA Array Interface -------------------------------------------------------------------

// Types that the Python path has found to be read by this interface; subclasses are not included.
// The references are kept for the life of the process. Few programs have more than one such type.
struct WithInterface {
  PyTypeObject* type;
  PyObject* make;  // its library's function of (shape, dtype=) that makes a new array; or nullptr
};
constexpr std::size_t kMostTypes = 16;
std::array<WithInterface, kMostTypes> types_with_interface{};
std::size_t known_types = 0;

const WithInterface* find_interface(PyTypeObject* type) {
  const std::span known(types_with_interface.data(), known_types);
  const auto found = std::ranges::find(known, type, &WithInterface::type);
  return found == known.end() ? nullptr : &*found;
}
bool has_interface(PyTypeObject* type) { return find_interface(type) != nullptr; }

// Types that other code handles: lists and tuples as buffer specifications, and NumPy arrays.
bool is_other_kind(PyTypeObject* type) {
  return PyType_FastSubclass(type, Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS) != 0 ||
         is_array_type(type);
}

void know_device_arrays(const py::type& type, const py::object& make) {
  auto* const known = reinterpret_cast<PyTypeObject*>(type.ptr());
  if (has_interface(known) || known_types == kMostTypes || is_other_kind(known)) return;
  types_with_interface[known_types++] = {reinterpret_cast<PyTypeObject*>(Py_NewRef(type.ptr())),
                                         make.is_none() ? nullptr : Py_NewRef(make.ptr())};
}

// Converts an element type in NumPy's notation, such as "<f4".
std::optional<DType> dtype_of_text(PyObject* text) {
  if (text == nullptr || !PyUnicode_CheckExact(text)) return std::nullopt;
  Py_ssize_t length = 0;
  const char* const letters = PyUnicode_AsUTF8AndSize(text, &length);
  if (letters == nullptr) PyErr_Clear();
  if (letters == nullptr || length < 3 || length > 4) return std::nullopt;
  std::size_t bytes = 0;
  for (Py_ssize_t i = 2; i < length; ++i) {
    if (letters[i] < '0' || letters[i] > '9') return std::nullopt;
    bytes = 10 * bytes + static_cast<std::size_t>(letters[i] - '0');
  }
  constexpr char kNative = std::endian::native == std::endian::little ? '<' : '>';
  if (letters[0] != (bytes == 1 ? '|' : kNative)) return std::nullopt;
  constexpr std::string_view kLetters = "iubfc";  // in the order of DTypeKind
  for (const DTypeInfo& info : kDTypeInfo) {
    const bool same = info.numpys && info.bytes == bytes &&
                      kLetters[static_cast<std::size_t>(info.kind)] == letters[1];
    if (same) return info.dtype;
  }
  return std::nullopt;
}

// Returns false if the Python path has to handle the shape.
bool read_shape(PyObject* shape, ShapedArray& array) {
  if (shape == nullptr || !PyTuple_CheckExact(shape)) return false;
  array.axes = static_cast<std::size_t>(PyTuple_GET_SIZE(shape));
  if (array.axes > ShapedArray::kMostAxes) return false;
  array.count = 1;
  for (std::size_t axis = 0; axis < array.axes; ++axis) {
    const auto length = whole_number(PyTuple_GET_ITEM(shape, static_cast<Py_ssize_t>(axis)));
    if (!length || *length <= 0) return false;  // an empty array has no address
    array.lengths[axis] = *length;
    array.count *= static_cast<std::size_t>(*length);
  }
  return true;
}

// Whether the strides are those of C order.
bool is_in_order(PyObject* strides, const ShapedArray& array) {
  if (strides == nullptr || strides == Py_None) return true;
  if (!PyTuple_CheckExact(strides)) return false;
  if (static_cast<std::size_t>(PyTuple_GET_SIZE(strides)) != array.axes) return false;
  std::array<std::int64_t, ShapedArray::kMostAxes> steps{};
  for (std::size_t axis = 0; axis < array.axes; ++axis) {
    const auto step = whole_number(PyTuple_GET_ITEM(strides, static_cast<Py_ssize_t>(axis)));
    if (!step) return false;
    steps[axis] = *step;
  }
  const auto element = static_cast<std::int64_t>(size_of(array.dtype));
  const auto layout = layout_of(array.shape(), steps.data(), element);
  return layout && layout->by_rows;
}

bool read_data(PyObject* data, ShapedArray& array) {
  if (data == nullptr || !PyTuple_CheckExact(data) || PyTuple_GET_SIZE(data) != 2) return false;
  PyObject* const address = PyTuple_GET_ITEM(data, 0);
  PyObject* const read_only = PyTuple_GET_ITEM(data, 1);
  if (!PyLong_CheckExact(address) || !PyBool_Check(read_only)) return false;
  array.data = PyLong_AsVoidPtr(address);
  array.writable = read_only == Py_False;
  if (array.data == nullptr) PyErr_Clear();
  return array.data != nullptr;
}

// Returns false if the Python path has to find the stream. Numba's arrays without a stream have one
// by Numba's own rules.
bool read_stream(PyObject* stream, PyObject* object, ShapedArray& array) {
  static PyObject* const numbas = PyUnicode_InternFromString("__cuda_ndarray__");
  if (stream == nullptr || stream == Py_None) {
    const bool is_numbas = static_cast<bool>(attribute_of(object, numbas));
    clear_error();
    return !is_numbas;
  }
  const auto handle = whole_number(stream);
  if (!handle || *handle < 0) return false;
  array.stream = static_cast<std::uint64_t>(*handle);
  return true;
}

std::optional<ShapedArray> array_by_interface(PyObject* object) {
  static PyObject* const name = PyUnicode_InternFromString("__cuda_array_interface__");
  struct Key {
    explicit Key(const char* name) : text(PyUnicode_InternFromString(name)) {}
    PyObject* const text;
  };
  static const Key typestr("typestr"), shape("shape"), strides("strides"), data("data"),
      mask("mask"), stream("stream");
  const py::object interface = attribute_of(object, name);
  if (!interface || !PyDict_CheckExact(interface.ptr())) {
    clear_error();
    return std::nullopt;
  }
  const auto entry = [&](const Key& key) {
    return PyDict_GetItemWithError(interface.ptr(), key.text);
  };
  const auto dtype = dtype_of_text(entry(typestr));
  PyObject* const masked = entry(mask);
  if (!dtype || (masked != nullptr && masked != Py_None)) return std::nullopt;
  ShapedArray made{};
  made.dtype = *dtype;
  const bool plain = read_shape(entry(shape), made) && is_in_order(entry(strides), made) &&
                     read_data(entry(data), made) && read_stream(entry(stream), object, made);
  return plain ? std::optional(made) : std::nullopt;
}

}  // namespace

// ---- arrays of either kind ----------------------------------------------------------------------

DeviceMemory* device_memory_at(const void* address, std::size_t bytes) {
  const auto options = known_device_options();
  if (options == nullptr) return nullptr;
  try {
    return device::device_at(address, bytes, *options);
  } catch (const Error&) {  // the Python path raises it again, and notifies the peers
    return nullptr;
  }
}

namespace {

// The Python path raises an error again, and notifies the peers.
py::object made_or_null(PyObject* made) {
  if (made == nullptr) clear_error();
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

py::object new_array(PyObject* x, std::span<const std::int64_t> shape) {
  if (is_array_type(Py_TYPE(x))) return made_or_null(new_shaped(x, shape));
  static PyObject* const new_empty = PyUnicode_InternFromString("new_empty");
  static PyObject* const dtype = PyUnicode_InternFromString("dtype");
  static PyObject* const names = PyTuple_Pack(1, dtype);
  py::tuple lengths(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) lengths[axis] = py::int_(shape[axis]);
  const WithInterface* const known = find_interface(Py_TYPE(x));
  if (known == nullptr) return made_or_null(PyObject_CallMethodOneArg(x, new_empty, lengths.ptr()));
  const py::object type = known->make != nullptr ? attribute_of(x, dtype) : py::object();
  if (!type) return made_or_null(nullptr);
  const std::array<PyObject*, 2> given = {lengths.ptr(), type.ptr()};
  return made_or_null(PyObject_Vectorcall(known->make, given.data(), 1, names));
}

py::object new_like(const py::object& x) {
  if (is_array_type(Py_TYPE(x.ptr()))) return made_or_null(new_numpy_like(x.ptr()));
  const auto given = shaped_array_of(x.ptr());
  return given ? new_array(x.ptr(), given->shape()) : py::object();
}

namespace {

// Whether the host may read an array that has the interface of those on GPUs. Work of its stream is
// complete then. An object that has a buffer, too, may be read-only by that alone.
bool is_in_host_memory(PyObject* object, const ShapedArray& array) {
  const std::size_t bytes = array.count * size_of(array.dtype);
  if (PyObject_CheckBuffer(object) != 0) return false;
  if (!device::may_have_driver()) return device::is_readable(array.data, bytes);
  const auto options = known_device_options();
  if (options == nullptr) return false;
  try {
    const WithoutGil released;
    return device::locate(array.data, bytes, array.stream, *options).place == device::Place::kHost;
  } catch (const Error&) {  // the Python path raises it again, and notifies the peers
    return false;
  }
}

// For all but NumPy's arrays.
std::optional<ShapedArray> other_array_of(PyObject* object) {
  auto found = tensor_view(object);
  if (found) {
    const std::size_t itemsize = size_of(found->dtype), bytes = found->count * itemsize;
    if (bytes == 0 || !is_as_it_lies(object, bytes, itemsize)) return std::nullopt;
    if (!found->stream) return found;  // it is in host memory
  } else if (has_interface(Py_TYPE(object))) {
    found = array_by_interface(object);
  }
  if (!found) return std::nullopt;
  if (device::may_have_driver()) {
    found->memory = device_memory_at(found->data, found->count * size_of(found->dtype));
  }
  if (found->memory == nullptr && has_interface(Py_TYPE(object)) &&
      is_in_host_memory(object, *found)) {
    found->stream.reset();
    return found;
  }
  return found->memory != nullptr ? found : std::nullopt;
}

}  // namespace

std::optional<ShapedArray> shaped_array_of(PyObject* object) {
  const auto numpys = view_of(object);
  if (!numpys) return other_array_of(object);
  const auto shape = shape_in_order(object);
  if (!shape || shape->size() > ShapedArray::kMostAxes) return std::nullopt;
  ShapedArray made{};
  static_cast<ArrayView&>(made) = *numpys;
  made.axes = shape->size();
  std::ranges::copy(*shape, made.lengths.begin());
  return made;
}

bool plain_array_of(PyObject* object, PlainArray& array) {
  if (view_array(object, array)) return true;
  const auto found = other_array_of(object);
  if (found) array = *found;
  return found.has_value();
}

Placement placement_of(const PlainArray* send, const PlainArray& recv,
                       std::optional<std::uint64_t> stream, bool host_waits) {
  host_waits |= recv.memory == nullptr;
  Placement made{.send = send != nullptr ? send->memory : nullptr, .recv = recv.memory};
  for (const PlainArray* const array : {send, &recv}) {
    if (array == nullptr || array->memory == nullptr) continue;
    const auto own = array->stream;
    if (own && (!stream || own == kLegacyStream || array->is_new)) {
      made.after.emplace_back(array->memory, *own);
    }
    if (stream && host_waits) made.after.emplace_back(array->memory, *stream);
  }
  if (!host_waits) made.stream = stream;
  return made;
}

namespace {

// The description that Python code has made of an array.
PlainArray placed(PyObject* x) {
  static PyObject* const memory = PyUnicode_InternFromString("memory");
  PlainArray made{};
  const auto device = attribute_of(x, memory);
  if (!device) throw py::error_already_set();
  if (device.is_none()) return made;
  made.memory = device.cast<DeviceMemory*>();
  made.stream = py::handle(x).attr("stream").cast<std::optional<std::uint64_t>>();
  made.is_new = py::getattr(x, "is_new", py::bool_(false)).cast<bool>();
  return made;
}

// The fields of Exported in src/gradred/buffers/dlpack.py.
py::object described(const py::object& x) {
  static const bool has_numpy = load_numpy();  // arrays are described before install(), too
  if (!has_numpy) throw py::error_already_set();
  py::object shape, strides = py::none();
  PlainArray found{};
  if (const auto numpys = view_of(x.ptr())) {
    static_cast<ArrayView&>(found) = *numpys;
    shape = x.attr("shape");
    strides = x.attr("strides");
  } else {
    const auto other = other_array_of(x.ptr());
    if (!other) return py::none();
    found = *other;
    py::tuple lengths(other->axes);
    for (std::size_t axis = 0; axis < other->axes; ++axis) {
      lengths[axis] = py::int_(other->lengths[axis]);
    }
    shape = std::move(lengths);
  }
  const std::string_view dtype = name_of(found.dtype);
  return py::make_tuple(reinterpret_cast<std::uintptr_t>(found.data),
                        py::str(dtype.data(), dtype.size()), std::move(shape), std::move(strides),
                        size_of(found.dtype), found.writable, x,
                        py::cast(found.memory, py::return_value_policy::reference), found.stream);
}

}  // namespace

void bind_device_arrays(py::module_& m) {
  py::class_<ArrayLayout>(m, "Layout", "The layout of a dense array in memory.")
      .def_readonly("count", &ArrayLayout::count)
      .def_property_readonly("order",
                             [](const ArrayLayout& layout) {
                               py::tuple order(layout.axes);
                               for (std::size_t i = 0; i < layout.axes; ++i) {
                                 order[i] = static_cast<int>(layout.order[i]);
                               }
                               return order;
                             })
      .def_readonly("hash", &ArrayLayout::hash)
      .def_readonly("straight", &ArrayLayout::straight)
      .def_readonly("by_rows", &ArrayLayout::by_rows)
      .def("__eq__", [](const ArrayLayout& a, const ArrayLayout& b) { return a == b; });
  m.def(
      "layout_of",
      [](const std::vector<std::int64_t>& shape,
         const std::optional<std::vector<std::int64_t>>& strides, std::int64_t itemsize) {
        if (strides && strides->size() != shape.size()) {
          throw UsageError("the array has not as many strides as axes");
        }
        return layout_of(shape, strides ? strides->data() : nullptr, itemsize);
      },
      py::arg("shape"), py::arg("strides"), py::arg("itemsize"),
      "Return the layout of an array with these strides in bytes (None: C order); None if it has "
      "gaps.");
  m.def("plain_array", &described, py::arg("x"),
        "Return address, type, shape, strides in bytes (None: C order), bytes of an element, "
        "whether it is "
        "writable, the array, memory and stream, of a dense array that the core reads by itself: "
        "NumPy's, a tensor, or one on a GPU. None where it takes a closer look.");
  m.def(
      "placement",
      [](const py::object& send, const py::object& recv, std::optional<std::uint64_t> stream,
         bool host_waits) -> std::optional<Placement> {
        const auto input = send.is_none() ? PlainArray{} : placed(send.ptr());
        const PlainArray result = placed(recv.ptr());
        if (input.memory == nullptr && result.memory == nullptr) return std::nullopt;
        return placement_of(send.is_none() ? nullptr : &input, result, stream, host_waits);
      },
      py::arg("send"), py::arg("recv"), py::arg("stream") = py::none(), py::kw_only(),
      py::arg("host_waits") = false,
      "Return where a call's arrays lie, and which streams it follows, as placement_of() of "
      "csrc/python/device_arrays.h says; send None: in place. None: all are in host memory.");
  m.def("know_device_arrays", &know_device_arrays, py::arg("type"), py::arg("make") = py::none(),
        "From now on objects of this type may be read by their CUDA Array Interface alone. "
        "`make(shape, dtype=)` makes a new one.");
}

}  // namespace gradred
