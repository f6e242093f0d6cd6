// Calls on NumPy arrays of types that only the MPI has, such as long double.
//
// Python code finds what the ranks compare of such a call, from the MPI's description of the type.
// From then on the core knows this for the same call, and needs no Python code.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "python/comm_calls.h"

namespace gradred {

// Policy for reading the buffers of such a call, as bytes.
struct MpiOnly {
  using Array = ArrayView;
  struct Made : Call {
    int type = -1;  // NumPy's number of the elements' type
  };

  static bool read(PyObject* given, std::size_t blocks, Access access, Made& made, Array& array);
};

// What the ranks compare of a call; nullopt: the Python path has to find out. Of a move it is the
// layout; on a reduction they agree before they leave it to the MPI.
std::optional<std::uint64_t> compared_by_ranks(const MpiOnly::Made& made);

// Blocks until all ranks have agreed to leave this reduction to the MPI.
void agree_on(Communicator& comm, const MpiOnly::Made& made, std::uint64_t compared);

// Calls a method of mpi4py's, by its own words for operations and for calls in place. Returns a new
// reference, nullptr with a Python error, or nullopt if the MPI has no such operation.
std::optional<PyObject*> call_mpi4py(PyObject* method, PyObject* self, const Placed& args, Op op);

void bind_mpi_only(pybind11::module_& m);

}  // namespace gradred
