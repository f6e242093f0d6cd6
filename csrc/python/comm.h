// The methods of gradred.Comm whose overhead must be small.
#pragma once

#include <Python.h>

#include <optional>

#include "calls/call.h"
#include "python/numpy.h"
#include "python/py_call.h"

namespace gradred {

struct PlainCall {
  Call call;
  Placement placement{};  // if not all arrays are in host memory
};

// Describes an allreduce of plain arrays (NumPy or GPU) by a predefined operation. `op` nullptr is
// a sum. Returns false if the Python path has to handle the arguments.
bool plain_allreduce(PyObject* send, PyObject* recv, PyObject* op, PlainCall& made);

// The operation that `op` selects. nullptr is a sum; else `op` is an MPI.Op or a name. Returns
// nullopt if the Python path has to handle it.
std::optional<Op> asked_op(PyObject* op);
bool overlap(const ArrayView& a, const ArrayView& b);

// Adds the methods to the class as method descriptors. `by_name` has a Python function for each
// method: the Python path, which handles arguments that the C++ code does not accept.
void add_methods(PyTypeObject* comm_class, PyObject* by_name);

}  // namespace gradred
