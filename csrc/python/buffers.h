// Reads the buffers that a program passes to a communicator's methods, in mpi4py's forms: an array,
// [array, count, type] and the like, and objects that lend their memory by the buffer protocol.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <optional>

#include "python/array.h"

namespace gradred {

// Keeps a buffer's memory alive and in place during a call, even if the program changes the list
// that named it, or resizes the object that lent it. The caller holds the GIL throughout, except
// between making and destroying.
class HeldBuffer {
 public:
  HeldBuffer() { view_.obj = nullptr; }  // borrow() sets the rest
  ~HeldBuffer();
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

  void hold(PyObject* object);
  // Takes the object's memory by the buffer protocol. Returns nullptr, without a Python error, if
  // the object does not lend it with these flags.
  const Py_buffer* borrow(PyObject* object, int flags);
  // Takes the object's memory by DLPack. Returns nullptr, without a Python error, if the object
  // does not lend it. `versioned`: the object knows versions of DLPack.
  PyObject* borrow_capsule(PyObject* object, bool versioned);
  // An object that does the same once this one has gone: `given` itself, if nothing is held. Throws
  // error_already_set.
  pybind11::object keeper(PyObject* given) const;

 private:
  PyObject* object_ = nullptr;
  Py_buffer view_;  // view_.obj is nullptr if the object lends nothing
};

// Whether a call writes to a buffer.
enum class Access { kRead, kWrite };

// Describes a buffer of dense elements of a type that gradred knows; its count is that of one of
// `blocks` equal blocks. Returns false for all else, which the Python path reads or refuses. It
// also does so until the Python path has seen an object of this kind (know_tensors(),
// know_device_arrays(), know_buffers(), know_capsules()). Runs the object's own Python code.
bool read_buffer(PyObject* given, std::size_t blocks, Access access, HeldBuffer& held,
                 PlainArray& array);

// Converts a whole number of Python's or of another library, such as NumPy's. Returns nullopt for
// negative ones and all else. Runs the object's own Python code.
std::optional<std::size_t> whole_number(PyObject* given);

void bind_buffers(pybind11::module_& m);

}  // namespace gradred
