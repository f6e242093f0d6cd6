#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION  // required by NumPy
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION     // the first with handlers of memory
#include "python/numpy.h"

#include <numpy/arrayobject.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "memory/kept_pages.h"
#include "python/array_layout.h"

namespace gradred {
namespace {

constexpr std::size_t kTypeNumbers = 32;

// Types by NumPy's type number. bfloat16 comes from other packages, with another number.
constexpr std::array<signed char, kTypeNumbers> make_table() {
  std::array<signed char, kTypeNumbers> table{};
  table.fill(-1);
  const auto set = [&](int number, DType dtype) {
    table[static_cast<std::size_t>(number)] = static_cast<signed char>(dtype);
  };
  set(NPY_BOOL, DType::kBool);
  set(NPY_BYTE, DType::kInt8);
  set(NPY_UBYTE, DType::kUInt8);
  set(NPY_SHORT, DType::kInt16);
  set(NPY_USHORT, DType::kUInt16);
  set(NPY_INT, DType::kInt32);
  set(NPY_UINT, DType::kUInt32);
  set(NPY_LONG, DType::kInt64);
  set(NPY_ULONG, DType::kUInt64);
  set(NPY_LONGLONG, DType::kInt64);
  set(NPY_ULONGLONG, DType::kUInt64);
  set(NPY_HALF, DType::kFloat16);
  set(NPY_FLOAT, DType::kFloat32);
  set(NPY_DOUBLE, DType::kFloat64);
  set(NPY_CFLOAT, DType::kComplex64);
  set(NPY_CDOUBLE, DType::kComplex128);
  return table;
}
static_assert(sizeof(long) == 8 && sizeof(long long) == 8);

constexpr auto kTable = make_table();

// An array of gradred's gives its memory to KeptPages, whenever its last user lets it go.
PyObject* handler_of_results() {
  static PyDataMem_Handler handler = {
      "gradred_results",
      1,
      {nullptr, [](void*, std::size_t bytes) { return KeptPages::of_process().take(bytes); },
       [](void*, std::size_t count, std::size_t each) -> void* {
         std::size_t bytes = 0;
         if (__builtin_mul_overflow(count, each, &bytes)) return nullptr;
         void* const data = KeptPages::of_process().take(bytes);
         return data == nullptr ? nullptr : std::memset(data, 0, bytes);
       },
       [](void*, void* data, std::size_t bytes) -> void* {
         auto& pages = KeptPages::of_process();
         const std::size_t room = pages.room(data);
         if (bytes <= room && bytes >= room / 2) return data;
         void* const moved = pages.take(bytes);
         if (moved == nullptr) return bytes <= room ? data : nullptr;
         std::memcpy(moved, data, std::min(bytes, room));
         pages.give(data);
         return moved;
       },
       [](void*, void* data, std::size_t) { KeptPages::of_process().give(data); }}};
  static PyObject* const capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
  return capsule;
}

// While it exists, NumPy takes memory of long results from KeptPages, unless the program has a
// handler of its own.
class HandlerOfResults {
 public:
  explicit HandlerOfResults(std::size_t bytes) {
    if (bytes < KeptPages::kLeast) return;
    PyObject* const now = PyDataMem_GetHandler();
    if (now == PyDataMem_DefaultHandler) before_ = PyDataMem_SetHandler(handler_of_results());
    Py_XDECREF(now);
  }
  HandlerOfResults(const HandlerOfResults&) = delete;
  HandlerOfResults& operator=(const HandlerOfResults&) = delete;
  ~HandlerOfResults() {
    if (before_ == nullptr) return;
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    Py_XDECREF(PyDataMem_SetHandler(before_));
    Py_DECREF(before_);
    PyErr_Restore(type, value, trace);
  }

 private:
  PyObject* before_ = nullptr;
};

bool is_dense(PyArrayObject* array) {
  const int flags = PyArray_FLAGS(array);
  const bool dense = (flags & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS)) != 0;
  return dense && (flags & NPY_ARRAY_ALIGNED) != 0;
}

}  // namespace

bool load_numpy() { return _import_array() == 0; }

bool view_array(PyObject* object, ArrayView& view) {
  if (!PyArray_CheckExact(object)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if (!is_dense(array)) return false;
  const PyArray_Descr* descr = PyArray_DESCR(array);
  const auto number = static_cast<std::size_t>(descr->type_num);
  if (number >= kTypeNumbers || kTable[number] < 0 || descr->byteorder == '>') return false;
  view.count = 1;
  for (int axis = 0; axis < PyArray_NDIM(array); ++axis) {
    view.count *= static_cast<std::size_t>(PyArray_DIM(array, axis));
  }
  view.data = PyArray_DATA(array);
  view.dtype = static_cast<DType>(kTable[number]);
  view.writable = PyArray_ISWRITEABLE(array);
  return view.data != nullptr || view.count == 0;  // else the Python path refuses it
}

bool view_bytes(PyObject* object, ArrayView& view, int& type) {
  if (!PyArray_CheckExact(object)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  type = PyArray_TYPE(array);
  const bool is_known = type == NPY_LONGDOUBLE || type == NPY_CLONGDOUBLE;
  if (!is_known || !is_dense(array) || !PyArray_ISNOTSWAPPED(array)) return false;
  view = {PyArray_DATA(array), static_cast<std::size_t>(PyArray_NBYTES(array)), DType::kUInt8,
          PyArray_ISWRITEABLE(array) != 0};
  return view.data != nullptr;
}

std::optional<ArrayView> view_of(PyObject* object) {
  ArrayView view{};
  return view_array(object, view) ? std::optional(view) : std::nullopt;
}

bool is_array_type(PyTypeObject* type) { return PyType_IsSubtype(type, &PyArray_Type) != 0; }

std::uint64_t layout_of_plain(PyObject* object) {
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  return layout_of({PyArray_DIMS(array), static_cast<std::size_t>(PyArray_NDIM(array))},
                   PyArray_STRIDES(array), PyArray_ITEMSIZE(array))
      ->hash;
}

std::optional<std::span<const std::int64_t>> shape_in_order(PyObject* object) {
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if ((PyArray_FLAGS(array) & NPY_ARRAY_C_CONTIGUOUS) == 0) return std::nullopt;
  return std::span<const std::int64_t>(PyArray_DIMS(array),
                                       static_cast<std::size_t>(PyArray_NDIM(array)));
}

PyObject* new_shaped(PyObject* object, std::span<const std::int64_t> shape) {
  auto* const array = reinterpret_cast<PyArrayObject*>(object);
  PyArray_Descr* const descr = PyArray_DESCR(array);
  auto bytes = static_cast<std::size_t>(PyArray_ITEMSIZE(array));
  for (const std::int64_t length : shape) bytes *= static_cast<std::size_t>(length);
  const HandlerOfResults handler(bytes);
  Py_INCREF(descr);  // for the new array
  return PyArray_NewFromDescr(&PyArray_Type, descr, static_cast<int>(shape.size()), shape.data(),
                              nullptr, nullptr, 0, nullptr);
}

PyObject* array_of_scalar(PyObject* object) {
  if (!PyArray_IsScalar(object, Generic)) return nullptr;
  PyObject* const made = PyArray_FromScalar(object, nullptr);
  if (made == nullptr) PyErr_Clear();  // the Python path reports the error
  return made;
}

PyObject* scalar_of(PyObject* array) {
  return PyArray_Return(reinterpret_cast<PyArrayObject*>(array));
}

PyObject* new_numpy_like(PyObject* array) {
  const HandlerOfResults handler(
      static_cast<std::size_t>(PyArray_NBYTES(reinterpret_cast<PyArrayObject*>(array))));
  return PyArray_NewLikeArray(reinterpret_cast<PyArrayObject*>(array), NPY_KEEPORDER, nullptr, 0);
}

}  // namespace gradred
