#include "python/comm.h"

#include <pybind11/pybind11.h>

#include "base/errors.h"
#include "python/errors.h"
#include "python/mpi4py.h"
#include "python/numpy.h"
#include "python/one_thread.h"
#include "python/wait_hook.h"

namespace gradred {
namespace {

bool overlap(const void* a, const void* b, std::size_t bytes) {
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  return x < y + bytes && y < x + bytes;
}

PyObject* slow_allreduce(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  static PyObject* function = nullptr;
  if (function == nullptr) {
    PyObject* module = PyImport_ImportModule("gradred.comm");
    if (module == nullptr) return nullptr;
    function = PyObject_GetAttrString(module, "_allreduce");
    Py_DECREF(module);
    if (function == nullptr) return nullptr;
  }
  const auto total = nargs + (names != nullptr ? PyTuple_GET_SIZE(names) : 0);
  std::vector<PyObject*> all(static_cast<std::size_t>(total) + 1);
  all[0] = self;
  for (Py_ssize_t i = 0; i < total; ++i) all[static_cast<std::size_t>(i) + 1] = args[i];
  return PyObject_Vectorcall(function, all.data(), static_cast<std::size_t>(nargs) + 1, names);
}

extern "C" PyObject* comm_allreduce(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                    PyObject* names) {
  const bool op_by_name = names != nullptr && nargs == 2 && PyTuple_GET_SIZE(names) == 1 &&
                          PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "op") == 0;
  if (nargs < 2 || nargs > 3 || (names != nullptr && !op_by_name)) {
    return slow_allreduce(self, args, nargs, names);
  }
  PyObject* op = nargs == 3 || op_by_name ? args[2] : nullptr;
  const auto call = plain_allreduce(args[0], args[1], op);
  if (!call) return slow_allreduce(self, args, nargs, names);
  try {
    Communicator& communicator = communicator_of(self);
    const OneThread one_thread(communicator);
    GilHook hook;
    communicator.run(*call, hook);
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef allreduce_method = {
    "Allreduce", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(comm_allreduce)),
    METH_FASTCALL | METH_KEYWORDS,
    "Allreduce($self, sendbuf, recvbuf, op=SUM)\n--\n\n"
    "Reduce the vectors of all ranks elementwise; every rank gets the result.\n\n"
    "Blocks until the result is in `recvbuf`; all ranks get bitwise the same.\n\n"
    "Args:\n"
    "    sendbuf: this rank's input, left unchanged: an array or an mpi4py buffer specification;\n"
    "        MPI.IN_PLACE (or None) takes it from `recvbuf`.\n"
    "    recvbuf: where the result goes: as many elements of the same type, writable.\n"
    "    op: an MPI.Op, a name from gradred.OPS, or gradred.premul(factor).\n\n"
    "Raises:\n"
    "    gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.\n"
    "    gradred.PeerLost: the process of a peer has ended.\n"};

}  // namespace

std::optional<Call> plain_allreduce(PyObject* send, PyObject* recv, PyObject* op) {
  const Mpi4py& known = Mpi4py::get();
  const auto result = view_of(recv);
  if (!result || !result->writable) return std::nullopt;
  Call call{.kind = Kind::kAllreduce,
            .recv = result->data,
            .count = result->count,
            .dtype = result->dtype};
  if (send != known.in_place && send != Py_None) {
    const auto input = view_of(send);
    if (!input || input->count != result->count || input->dtype != result->dtype ||
        overlap(input->data, result->data, result->count * size_of(result->dtype))) {
      return std::nullopt;
    }
    call.send = input->data;
  }
  if (op != nullptr) {
    const auto found = op_of(op);
    if (!found) return std::nullopt;
    call.op = *found;
  }
  return find_reduction(call.op, call.dtype) != nullptr ? std::optional(call) : std::nullopt;
}

void add_methods(PyTypeObject* comm_class) {
  PyObject* method = PyDescr_NewMethod(comm_class, &allreduce_method);
  if (method == nullptr) throw pybind11::error_already_set();
  const int failed =
      PyObject_SetAttrString(reinterpret_cast<PyObject*>(comm_class), "Allreduce", method);
  Py_DECREF(method);
  if (failed != 0) throw pybind11::error_already_set();
}

}  // namespace gradred
