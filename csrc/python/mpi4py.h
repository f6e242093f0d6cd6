// Access to mpi4py's objects without its headers. Each object has its MPI handle at a fixed offset.
#pragma once

#include <Python.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "base/types.h"
#include "comm/communicator.h"

namespace gradred {

// References that install() takes from mpi4py.MPI once and never releases.
struct Mpi4py {
  PyTypeObject* comm_type = nullptr;      // MPI.Comm
  PyTypeObject* datatype_type = nullptr;  // MPI.Datatype
  PyTypeObject* op_type = nullptr;        // MPI.Op
  PyObject* in_place = nullptr;           // MPI.IN_PLACE
  PyObject* type_codes = nullptr;         // MPI.Datatype objects by the letters that name them
  PyObject* when_alone = nullptr;         // called before a communicator of size 1 is first used
  std::size_t handle_offset = 0;          // of the MPI handle in an object
  std::array<PyObject*, kOps> ops{};      // MPI.SUM and others; nullptr if MPI has none

  static Mpi4py& get();
};

inline mpi::Handle handle_of(PyObject* object) {
  mpi::Handle handle = 0;
  std::memcpy(&handle, reinterpret_cast<const std::byte*>(object) + Mpi4py::get().handle_offset,
              mpi::get().is.handle_bytes);
  return handle;
}

inline void put_handle(PyObject* object, mpi::Handle handle) {
  std::memcpy(reinterpret_cast<std::byte*>(object) + Mpi4py::get().handle_offset, &handle,
              mpi::get().is.handle_bytes);
}

// The state of a communicator object.
Communicator& communicator_of(PyObject* comm);

// The operation of an MPI.Op object. Returns nullopt for user-defined ones and other objects.
std::optional<Op> op_of(PyObject* op);

}  // namespace gradred
