// The methods of gradred.Comm that must cost next to nothing.
#pragma once

#include <Python.h>

#include <optional>

#include "comm/call.h"
#include "python/call.h"
#include "python/numpy.h"

namespace gradred {

struct PlainCall {
  Call call;
  Placement placement{};  // of one that is not on the host
};

// What an allreduce of plain arrays, NumPy's or a GPU's, by a predefined operation means (`op` may
// be null: a sum); false where a closer look is needed.
bool plain_allreduce(PyObject* send, PyObject* recv, PyObject* op, PlainCall& made);

// Null: a sum. Else an object of mpi4py's, or a name; nothing where a closer look is needed.
std::optional<Op> asked_op(PyObject* op);
bool overlap(const ArrayView& a, const ArrayView& b);

// Puts them on the class, as method descriptors; `by_name` has a Python function for each, for
// arguments that take a closer look.
void add_methods(PyTypeObject* comm_class, PyObject* by_name);

}  // namespace gradred
