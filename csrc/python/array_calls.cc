// The fast path of the blocking calls on arrays, such as gradred.allreduce. Reading the arrays in
// Python would take longer than a short call.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "python/comm_calls.h"
#include "python/device_arrays.h"
#include "python/method.h"
#include "python/mpi4py.h"
#include "python/numpy.h"
#include "python/one_thread.h"
#include "python/py_errors.h"
#include "python/tensors.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

// Arguments of such a function: the array, the operation or root, and `out`.
struct Given {
  PyObject* x;
  PyObject* what;
  PyObject* out;
};

struct Found {
  PlainCall made;
  py::object result;
};

// Describes a call on `x`, and the array for its result of this shape. Returns nullopt if the
// Python path has to handle the arguments.
std::optional<Found> call_on(const Given& given, const ShapedArray& x,
                             std::span<const std::int64_t> shape) {
  Found found;
  if (given.out != Py_None) {
    found.result = py::reinterpret_borrow<py::object>(given.out);
  } else if (x.memory == nullptr) {
    found.result = new_array(given.x, shape);
  }
  const auto out = found.result ? shaped_array_of(found.result.ptr()) : std::nullopt;
  if (!out || !out->writable || out->dtype != x.dtype || out->memory != x.memory ||
      !std::ranges::equal(out->shape(), shape)) {
    return std::nullopt;
  }
  const bool in_place = out->data == x.data;
  const auto bytes_of = [](const ArrayView& array) { return array.count * size_of(array.dtype); };
  if (!in_place && overlap(x.data, bytes_of(x), out->data, bytes_of(*out))) return std::nullopt;
  if (given.out != Py_None) tell_of_write(given.out);
  Call& call = found.made.call;
  call.in = {in_place ? kInPlace : x.data, memory_of(in_place ? nullptr : x.memory)};
  call.out = {out->data, memory_of(out->memory)};
  call.dtype = x.dtype;
  call.count = std::min(x.count, out->count);
  call.layout = x.layout();
  if (x.memory != nullptr) found.made.placement = placement_of(in_place ? nullptr : &x, *out);
  return found;
}

bool has_op(Call& call, PyObject* what) {
  const auto op = asked_op(what);
  if (!op || find_reduction(*op, call.dtype) == nullptr) return false;
  call.op = *op;
  return true;
}

std::optional<Found> allreduce(const Communicator&, const Given& given) {
  const auto x = shaped_array_of(given.x);
  if (!x) return std::nullopt;
  auto found = call_on(given, *x, x->shape());
  if (!found || !has_op(found->made.call, given.what)) return std::nullopt;
  found->made.call.kind = Kind::kAllreduce;
  return found;
}

std::optional<Found> reduce_scatter(const Communicator& comm, const Given& given) {
  const auto x = shaped_array_of(given.x);
  if (!x || x->axes == 0 || x->count == 0 || x->lengths[0] % comm.size() != 0) return std::nullopt;
  auto lengths = x->lengths;
  lengths[0] /= comm.size();
  auto found = call_on(given, *x, {lengths.data(), x->axes});
  if (!found || found->made.call.in_place() || !has_op(found->made.call, given.what)) {
    return std::nullopt;
  }
  found->made.call.kind = Kind::kReduceScatterBlock;
  return found;
}

std::optional<Found> allgather(const Communicator& comm, const Given& given) {
  const auto x = shaped_array_of(given.x);
  if (!x || x->count == 0) return std::nullopt;
  auto lengths = x->lengths;
  lengths[0] = comm.size() * (x->axes == 0 ? 1 : lengths[0]);
  auto found = call_on(given, *x, {lengths.data(), std::max<std::size_t>(x->axes, 1)});
  if (!found || found->made.call.in_place()) return std::nullopt;
  found->made.call.kind = Kind::kAllgather;
  return found;
}

std::optional<Found> bcast(const Communicator& comm, const Given& given) {
  const auto root = rank_from(given.what, comm);
  if (!root) return std::nullopt;
  const auto x = shaped_array_of(given.x);
  if (!x) return std::nullopt;
  auto found = call_on(given, *x, x->shape());
  if (!found) return std::nullopt;
  Call& call = found->made.call;
  if (!call.in_place()) {
    if (x->memory != nullptr) return std::nullopt;
    if (*root == comm.rank() && x->count > 0) {
      std::memcpy(call.out.data, x->data, x->count * size_of(x->dtype));
    }
    call.in = {kInPlace, {}};
  }
  call.kind = Kind::kBcast;
  call.root = *root;
  return found;
}

using Finding = std::optional<Found> (*)(const Communicator&, const Given&);

// Arguments: a communicator, and the fields of Given. Returns None if the Python path has to handle
// them.
template <Finding kFind>
PyObject* run_found(PyObject* /*module*/, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 4) {
    PyErr_SetString(PyExc_TypeError, "a communicator, x, op or root, and out");
    return nullptr;
  }
  try {
    Communicator& comm = communicator_of(args[0]);
    const auto scalars = py::reinterpret_steal<py::object>(array_of_scalar(args[1]));
    PyObject* const x = scalars ? scalars.ptr() : args[1];
    auto found = kFind(comm, {x, args[2], args[3]});
    if (!found) Py_RETURN_NONE;
    PlainCall& made = found->made;
    {
      const OneThread one_thread(comm);
      GilHook hook;
      if (made.call.on_host()) {
        comm.run(made.call, hook);
      } else {
        comm.run(ordered_or_refused(made.call, made.placement, comm, hook), hook);
      }
    }
    PyObject* const result = found->result.release().ptr();
    return scalars && args[3] == Py_None ? scalar_of(result) : result;
  } catch (...) {
    PyObject* const passed = PyTuple_Pack(2, args[1], args[3]);
    if (passed == nullptr) PyErr_Clear();
    set_python_error(std::current_exception(), passed);
    Py_XDECREF(passed);
    return nullptr;
  }
}

std::array<PyMethodDef, 5> functions = {{
    {"allreduce_array", as_method(run_found<allreduce>), METH_FASTCALL,
     "Of (comm, x, op, out). Blocks; the result, or None where x takes a closer look."},
    {"reduce_scatter_array", as_method(run_found<reduce_scatter>), METH_FASTCALL,
     "Of (comm, x, op, out), likewise."},
    {"allgather_array", as_method(run_found<allgather>), METH_FASTCALL,
     "Of (comm, x, None, out), likewise."},
    {"bcast_array", as_method(run_found<bcast>), METH_FASTCALL,
     "Of (comm, x, root, out), likewise."},
    {nullptr, nullptr, 0, nullptr},
}};

}  // namespace

void bind_array_calls(py::module_& m) {
  m.def(
      "allreduce_call",
      [](const py::object& comm, const py::object& x, const py::object& op,
         const py::object& out) -> py::object {
        auto found = allreduce(communicator_of(comm.ptr()), {x.ptr(), op.ptr(), out.ptr()});
        if (!found) return py::none();
        auto& made = found->made;
        auto call =
            std::make_shared<PyCall>(PyCall{std::move(made.call), {}, std::move(made.placement)});
        return py::make_tuple(std::move(call), std::move(found->result));
      },
      py::arg("comm"), py::arg("x"), py::arg("op"), py::arg("out"),
      "The call, to be started, and its result; None where x takes a closer look.");
  if (PyModule_AddFunctions(m.ptr(), functions.data()) != 0) throw py::error_already_set();
}

}  // namespace gradred
