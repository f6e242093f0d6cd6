#include "python/buffers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "device/readable.h"
#include "python/device_arrays.h"
#include "python/mpi4py.h"
#include "python/py_errors.h"
#include "python/tensors.h"

namespace gradred {
namespace {

namespace py = pybind11;

// ---- objects that lend their memory -------------------------------------------------------------

// Types whose objects the Python path has found to be plain memory. The references are kept for the
// life of the process. For ctypes' arrays, each length of which is a type of its own, it is the
// type of their types.
struct Lender {
  enum class By {
    kHostBuffer,  // the buffer protocol
    kBuffer,      // the same, and an object may show memory that the host cannot read
    kCapsule,     // DLPack
    kOldCapsule,  // DLPack before version 1.0
  };

  PyTypeObject* type;
  By by;
  bool writable;
};
constexpr std::size_t kMostLenders = 32;
std::array<Lender, kMostLenders> lenders{};
std::size_t known_lenders = 0;

const Lender* find_lender(PyTypeObject* type) {
  const std::span known(lenders.data(), known_lenders);
  const auto found = std::ranges::find_if(known, [type](const Lender& lender) {
    return lender.type == type || lender.type == Py_TYPE(type);
  });
  return found == known.end() ? nullptr : &*found;
}

PyTypeObject* lender_of(PyTypeObject* type) {
  PyTypeObject* const types_type = Py_TYPE(type);
  const bool is_ctypes_array = std::strcmp(types_type->tp_name, "_ctypes.PyCArrayType") == 0;
  return is_ctypes_array ? types_type : type;
}

void know_lender(const py::type& type, Lender::By by, bool writable) {
  PyTypeObject* const known = lender_of(reinterpret_cast<PyTypeObject*>(type.ptr()));
  if (find_lender(known) != nullptr || known_lenders == kMostLenders) return;
  Py_INCREF(known);
  lenders[known_lenders++] = {known, by, writable};
}

std::optional<DTypeKind> kind_of_letter(char letter) {
  switch (letter) {
    case 'c':
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return DTypeKind::kSigned;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return DTypeKind::kUnsigned;
    case 'e':
    case 'f':
    case 'd':
      return DTypeKind::kReal;
    case '?':
      return DTypeKind::kBool;
    default:
      return std::nullopt;
  }
}

// Converts a format of Python's module `struct`, with NumPy's letter Z for complex numbers. The
// length of an element counts, not that of the letter, since ctypes writes long as "<l".
std::optional<DType> dtype_of_format(const char* format, Py_ssize_t itemsize) {
  if (format == nullptr) format = "B";
  constexpr char kNative = std::endian::native == std::endian::little ? '<' : '>';
  if (*format == '@' || *format == '=' || *format == kNative) ++format;
  const bool is_complex = *format == 'Z';
  if (is_complex) ++format;
  auto kind = kind_of_letter(*format);
  if (!kind || format[1] != '\0' || (is_complex && kind != DTypeKind::kReal)) return std::nullopt;
  if (is_complex) kind = DTypeKind::kComplex;
  for (const DTypeInfo& info : kDTypeInfo) {
    const bool same =
        info.numpys && info.kind == kind && info.bytes == static_cast<std::size_t>(itemsize);
    if (same) return info.dtype;
  }
  return std::nullopt;
}

// A shift, as a division would take longer than all else here.
std::size_t whole_elements(std::size_t bytes, DType dtype) {
  return bytes >> std::countr_zero(size_of(dtype));
}
static_assert(std::ranges::all_of(kDTypeInfo, [](const DTypeInfo& info) {
  return std::has_single_bit(info.bytes);
}));

// Reads an object of a known type by the buffer protocol. `typed`: the program names the type of
// the elements, and without it there is no need for their format. Memory that this process cannot
// read may be a device's, which the Python path finds out.
bool lent_as_buffer(const Lender& lender, PyObject* object, Access access, bool typed,
                    HeldBuffer& held, PlainArray& array) {
  int flags = PyBUF_ANY_CONTIGUOUS;
  if (access == Access::kWrite) flags |= PyBUF_WRITABLE;
  if (!typed) flags |= PyBUF_FORMAT;
  const Py_buffer* const view = held.borrow(object, flags);
  if (view == nullptr) return false;
  const auto bytes = static_cast<std::size_t>(view->len);
  const auto dtype = typed ? DType::kUInt8 : dtype_of_format(view->format, view->itemsize);
  if (!dtype) return false;
  const bool in_host_memory = lender.by == Lender::By::kHostBuffer;
  if (!in_host_memory && !device::is_found_readable(view->buf, bytes)) return false;
  array = {{view->buf, whole_elements(bytes, *dtype), *dtype, view->readonly == 0}};
  return true;
}

// An object that has a buffer, too, may be read-only by that alone.
bool lent_by(const Lender& lender, PyObject* object, Access access, bool typed, HeldBuffer& held,
             PlainArray& array) {
  using By = Lender::By;
  if (lender.by == By::kHostBuffer || lender.by == By::kBuffer) {
    return lent_as_buffer(lender, object, access, typed, held, array);
  }
  if (access == Access::kWrite && (!lender.writable || PyObject_CheckBuffer(object) != 0)) {
    return false;
  }
  PyObject* const capsule = held.borrow_capsule(object, lender.by == By::kCapsule);
  const auto view = capsule != nullptr ? capsule_view(capsule) : std::nullopt;
  if (!view) return false;
  array = {*view};
  return true;
}

// ---- specifications -----------------------------------------------------------------------------

// The parts of [array, count, displacement, type]; null for those that are not given. They are
// references of their own, as the program's code may change the list while its parts are read.
struct BufferParts {
  py::object buffer, count, displacement, type;
};

py::object part_of(PyObject* given) {
  return given == Py_None ? py::object() : py::reinterpret_borrow<py::object>(given);
}

bool is_sequence(PyObject* object) {
  return PyList_CheckExact(object) || PyTuple_CheckExact(object);
}

bool names_type(PyObject* object) {
  return PyUnicode_Check(object) || PyObject_TypeCheck(object, Mpi4py::get().datatype_type);
}

// Takes a count, or a pair of count and displacement. Returns false if the Python path has to.
bool take_count(PyObject* given, BufferParts& parts) {
  if (!is_sequence(given)) {
    parts.count = part_of(given);
    return true;
  }
  if (PySequence_Fast_GET_SIZE(given) != 2) return false;
  parts.count = part_of(PySequence_Fast_GET_ITEM(given, 0));
  parts.displacement = part_of(PySequence_Fast_GET_ITEM(given, 1));
  return true;
}

bool take_apart(PyObject* given, BufferParts& parts) {
  PyObject* const* const items = PySequence_Fast_ITEMS(given);
  const Py_ssize_t length = PySequence_Fast_GET_SIZE(given);
  if (length < 2 || length > 4) return false;
  parts.buffer = part_of(items[0]);
  if (!parts.buffer) return false;
  if (length == 2 && names_type(items[1])) {
    parts.type = part_of(items[1]);
    return true;
  }
  if (length > 2) parts.type = part_of(items[length - 1]);
  if (length < 4) return take_count(items[1], parts);
  parts.count = part_of(items[1]);
  parts.displacement = part_of(items[2]);
  return true;
}

// Converts an MPI.Datatype, or the letters by which mpi4py knows one.
std::optional<DType> dtype_named(PyObject* type) {
  const Mpi4py& known = Mpi4py::get();
  if (PyUnicode_CheckExact(type)) {
    type = PyDict_GetItemWithError(known.type_codes, type);
    if (type == nullptr) PyErr_Clear();
  }
  if (type == nullptr || !PyObject_TypeCheck(type, known.datatype_type)) return std::nullopt;
  return mpi::get().dtype(handle_of(type));
}

// Cuts the elements that a specification names out of its array.
bool cut(const BufferParts& parts, std::size_t blocks, PlainArray& array) {
  const auto dtype = parts.type ? dtype_named(parts.type.ptr()) : array.dtype;
  const auto skipped = parts.displacement ? whole_number(parts.displacement.ptr()) : 0;
  if (!dtype || !skipped) return false;
  const std::size_t bytes = array.count * size_of(array.dtype);
  const std::size_t element = size_of(*dtype);
  if (*skipped > whole_elements(bytes, *dtype)) return false;
  const std::size_t left = bytes - *skipped * element;
  array.data = static_cast<std::byte*>(array.data) + *skipped * element;
  array.dtype = *dtype;
  std::size_t fit = whole_elements(left, *dtype);
  if (blocks > 1) fit /= blocks;
  if (parts.count) {
    const auto count = whole_number(parts.count.ptr());
    if (!count || *count > fit) return false;
    array.count = *count;
    return true;
  }
  array.count = fit;
  return array.count * blocks * element == left;
}

}  // namespace

std::optional<std::size_t> whole_number(PyObject* given) {
  if (!PyIndex_Check(given)) return std::nullopt;
  const Py_ssize_t number = PyLong_CheckExact(given)
                                ? PyLong_AsSsize_t(given)
                                : PyNumber_AsSsize_t(given, PyExc_OverflowError);
  if (number >= 0) return static_cast<std::size_t>(number);
  // The Python path reports a negative number and errors, but not Ctrl-C.
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) {
    throw PythonError{};
  }
  PyErr_Clear();
  return std::nullopt;
}

// ---- what a call holds --------------------------------------------------------------------------

HeldBuffer::~HeldBuffer() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
  Py_XDECREF(object_);
}

void HeldBuffer::hold(PyObject* object) { object_ = Py_NewRef(object); }

const Py_buffer* HeldBuffer::borrow(PyObject* object, int flags) {
  if (PyObject_GetBuffer(object, &view_, flags) == 0) {
    hold(object);
    return &view_;
  }
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw PythonError{};  // Ctrl-C
  PyErr_Clear();
  view_.obj = nullptr;
  return nullptr;
}

PyObject* HeldBuffer::borrow_capsule(PyObject* object, bool versioned) {
  static PyObject* const method = PyUnicode_InternFromString("__dlpack__");
  static PyObject* const names = Py_BuildValue("(s)", "max_version");
  static PyObject* const version = Py_BuildValue("(ii)", 1, 0);
  const std::array<PyObject*, 2> given = {object, version};
  object_ = PyObject_VectorcallMethod(method, given.data(), 1, versioned ? names : nullptr);
  if (object_ != nullptr) return object_;
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw PythonError{};  // Ctrl-C
  PyErr_Clear();
  return nullptr;
}

py::object HeldBuffer::keeper(PyObject* given) const {
  if (view_.obj == nullptr) {
    return py::reinterpret_borrow<py::object>(object_ != nullptr ? object_ : given);
  }
  const auto made = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(object_));
  if (!made) throw py::error_already_set();
  return made;
}

// ---- all forms ----------------------------------------------------------------------------------

bool read_buffer(PyObject* given, std::size_t blocks, Access access, HeldBuffer& held,
                 PlainArray& array) {
  BufferParts parts;
  PyObject* object = given;
  if (is_sequence(given)) {
    if (!take_apart(given, parts)) return false;
    object = parts.buffer.ptr();
  }
  if (const Lender* const lender = find_lender(Py_TYPE(object))) {
    const bool typed = static_cast<bool>(parts.type);
    if (!lent_by(*lender, object, access, typed, held, array)) return false;
  } else {
    if (!plain_array_of(object, array)) return false;
    if (object != given) held.hold(object);
  }
  return (array.writable || access == Access::kRead) && cut(parts, blocks, array);
}

void bind_buffers(py::module_& m) {
  using By = Lender::By;
  m.def(
      "know_buffers",
      [](const py::type& type, bool in_host_memory) {
        know_lender(type, in_host_memory ? By::kHostBuffer : By::kBuffer, true);
      },
      py::arg("type"), py::arg("in_host_memory"),
      "From now on objects of this type may be read by the buffer protocol alone. Unless "
      "`in_host_memory`, each may show memory that the host cannot read.");
  m.def(
      "know_capsules",
      [](const py::type& type, bool versioned, bool writable) {
        know_lender(type, versioned ? By::kCapsule : By::kOldCapsule, writable);
      },
      py::arg("type"), py::arg("versioned"), py::arg("writable"),
      "From now on objects of this type may be read by DLPack alone; `versioned`: they take "
      "`max_version`. Unless `writable`, nothing is ever written to them.");
}

}  // namespace gradred
