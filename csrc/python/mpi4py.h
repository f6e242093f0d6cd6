// Reading mpi4py's objects without its headers: a handle lies at a fixed place in each.
#pragma once

#include <Python.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "base/types.h"
#include "comm/communicator.h"

namespace gradred {

// What install() learns from mpi4py.MPI, once, and never lets go.
struct Mpi4py {
  PyTypeObject* comm_type = nullptr;      // MPI.Comm
  PyTypeObject* datatype_type = nullptr;  // MPI.Datatype
  PyTypeObject* op_type = nullptr;        // MPI.Op
  PyObject* in_place = nullptr;           // MPI.IN_PLACE
  PyObject* when_alone = nullptr;         // called before a communicator of size 1 is first used
  PyObject* on_timeout = nullptr;         // writes a report of a TimeoutError
  PyObject* with_passed = nullptr;        // makes a disagreement's text say what this rank passed
  std::size_t handle_offset = 0;          // of the handle in an object
  std::array<PyObject*, kOps> ops{};      // MPI.SUM and its like; null where MPI has none

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

// The state of a communicator object, remembered beside the MPI attribute for speed.
Communicator& communicator_of(PyObject* comm);

void forget_freed();  // communicators that only the table of handles still holds

// An operation by MPI.Op object; nothing for user-defined ones.
std::optional<Op> op_of(PyObject* op);

}  // namespace gradred
