// The fast path of the calls on arrays, such as gradred.allreduce. Reading the arrays in Python
// would take longer than a short call.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/copy_bytes.h"
#include "python/array_request.h"
#include "python/comm.h"
#include "python/comm_calls.h"
#include "python/device_arrays.h"
#include "python/method.h"
#include "python/mpi4py.h"
#include "python/numpy.h"
#include "python/one_thread.h"
#include "python/py_call.h"
#include "python/py_errors.h"
#include "python/request.h"
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
  py::object result;  // none on a rank that gets none
  // On the root of a broadcast: where the result of the array that it sends goes; else nullptr.
  void* copy_to = nullptr;

  std::size_t bytes() const { return made.call.count * size_of(made.call.dtype); }
  void copy() const {
    if (copy_to != nullptr) copy_bytes(copy_to, made.call.out.data, bytes());
  }
};

// Sets `result` to `out`, or to a new array like `model`, and describes it. Returns nullopt if
// the Python path has to handle the arguments.
std::optional<ShapedArray> place_of_result(const Given& given, PyObject* model,
                                           const ShapedArray& like,
                                           std::span<const std::int64_t> shape,
                                           py::object& result) {
  if (given.out != Py_None) {
    result = py::reinterpret_borrow<py::object>(given.out);
  } else {
    result = new_array(model, shape);
  }
  auto out = result ? shaped_array_of(result.ptr()) : std::nullopt;
  if (out && (!out->writable || out->dtype != like.dtype || out->memory != like.memory ||
              !std::ranges::equal(out->shape(), shape))) {
    out.reset();
  }
  if (out) out->is_new = given.out == Py_None;
  return out;
}

bool share_memory(const ShapedArray& x, const ShapedArray& out) {
  const auto bytes_of = [](const ArrayView& array) { return array.count * size_of(array.dtype); };
  return overlap(x.data, bytes_of(x), out.data, bytes_of(out));
}

// Sets the shape to that of the result of a rank that gives such an array: as many blocks along the
// first axis, or one of as many. Returns whether it can be cut.
bool join_or_cut(Kind kind, ShapedArray& x, int size) {
  if (info_of(kind).input == Part::kOwnBlock) {
    x.lengths[0] = size * (x.axes == 0 ? 1 : x.lengths[0]);
    x.axes = std::max<std::size_t>(x.axes, 1);
    return true;
  }
  if (x.axes == 0 || x.lengths[0] % size != 0) return false;
  x.lengths[0] /= size;
  return true;
}

// Describes a call of this kind. Returns nullopt if the Python path has to handle the arguments.
std::optional<Found> describe(Kind kind, const Communicator& comm, const Given& given) {
  PlaceInCall at{.rank = comm.rank(), .size = comm.size()};
  if (has_root(kind)) {
    const auto root = rank_from(given.what, comm);
    if (!root) return std::nullopt;
    at.root = *root;
  }
  const std::size_t gives = given_counts(kind, at), gets = got_counts(kind, at);
  if (gets == 0 && !has_root(kind)) return std::nullopt;  // Python writes what changes nothing
  // A rank that gives nothing passes an array like that which it gets; for a block, `out` may be
  // it.
  const bool may_be_out = gives == 0 && has_blocks(kind);
  PyObject* const model = may_be_out && given.x == Py_None ? given.out : given.x;
  const auto x = shaped_array_of(model);
  if (!x || (has_blocks(kind) && x->count == 0)) return std::nullopt;

  Found found;
  Call& call = found.made.call;
  call.kind = kind;
  call.root = at.root;
  call.dtype = x->dtype;
  call.count = x->count;
  call.layout = x->layout();
  if (reduces(kind)) {
    const auto op = asked_op(given.what);
    if (!op || find_reduction(*op, call.dtype) == nullptr) return std::nullopt;
    call.op = *op;
  }
  if (gets == 0) {
    if (x->memory != nullptr) return std::nullopt;
    call.in = {x->data};
    found.result = py::none();
    return found;
  }
  std::optional<ShapedArray> got;
  if (has_blocks(kind) && gives != 0) {
    got = x;
    if (!join_or_cut(kind, *got, comm.size())) return std::nullopt;
  }
  const bool sends_all = has_root(kind) && !has_blocks(kind);  // peers read the root's array
  const bool keeps = sends_all && gives != 0 && given.out == Py_None;  // its own array
  if (keeps) found.result = py::reinterpret_borrow<py::object>(model);
  const auto place =
      keeps ? x : place_of_result(given, model, *x, got ? got->shape() : x->shape(), found.result);
  if (!place) return std::nullopt;
  const ShapedArray& out = *place;
  const bool is_same = out.data == x->data;
  if (!may_be_out && (is_same ? has_blocks(kind) : share_memory(*x, out))) return std::nullopt;
  const bool copies = sends_all && gives != 0 && !is_same && x->count > 0;
  if (copies && x->memory != nullptr) return std::nullopt;
  if (copies) found.copy_to = out.data;
  const bool in_place = is_same || gives == 0 || sends_all;
  if (given.out != Py_None) tell_of_write(given.out);
  call.in = {in_place ? kInPlace : x->data, memory_of(in_place ? nullptr : x->memory)};
  call.out = {copies ? x->data : out.data, memory_of(out.memory)};
  call.count = std::min(x->count, out.count);
  // What the ranks compare: of a block where not all ranks have the vector.
  if (has_blocks(kind) && info_of(kind).input == Part::kRoots) call.layout = out.layout();
  if (out.memory != nullptr) {
    found.made.placement = placement_of(in_place ? nullptr : &*x, out);
  }
  return found;
}

// What a function returns if the Python path has to handle its arguments.
PyObject* of_python() { return Py_NewRef(Py_NotImplemented); }

// Calls `body` with the arguments of such a function: a communicator, and the fields of Given.
template <class Body>
PyObject* with_given(PyObject* const* args, Py_ssize_t nargs, Body body) {
  if (nargs < 4) {
    PyErr_SetString(PyExc_TypeError, "a communicator, x, op or root, and out");
    return nullptr;
  }
  try {
    return body(communicator_of(args[0]), Given{args[1], args[2], args[3]});
  } catch (...) {
    PyObject* const passed = PyTuple_Pack(2, args[1], args[3]);
    if (passed == nullptr) PyErr_Clear();
    set_python_error(std::current_exception(), passed);
    Py_XDECREF(passed);
    return nullptr;
  }
}

// The kind of call that a function makes, which is its `self`.
Kind kind_of(PyObject* self) { return static_cast<Kind>(PyLong_AsLong(self)); }

PyObject* run_fast(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  return with_given(args, nargs, [self](Communicator& comm, Given given) -> PyObject* {
    const auto scalars = py::reinterpret_steal<py::object>(array_of_scalar(given.x));
    if (scalars) given.x = scalars.ptr();
    auto found = describe(kind_of(self), comm, given);
    if (!found) return of_python();
    PlainCall& made = found->made;
    {
      const OneThread one_thread(comm);
      GilHook hook;
      constexpr std::size_t kLong = 64 << 10;
      if (!made.call.on_host()) {
        comm.run(ordered_or_refused(made.call, made.placement, comm, hook), hook);
      } else if (found->copy_to != nullptr && found->bytes() >= kLong) {
        comm.run_beside(made.call, hook, [&] { found->copy(); });
      } else {
        comm.run(made.call, hook);
        found->copy();
      }
    }
    const bool is_new = scalars && given.out == Py_None && !found->result.is_none();
    PyObject* const result = found->result.release().ptr();
    return is_new ? scalar_of(result) : result;
  });
}

// Set once, never released.
struct ArrayFunctions {
  PyObject* look_closer = nullptr;
  PyObject* make_world = nullptr;
  PyObject* world = nullptr;  // the communicator of calls that name none
};
ArrayFunctions array_functions;

// With stream and plan as well, the Python path is called where it is needed.
PyObject* run_array(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  constexpr Py_ssize_t kAll = 6;
  if (nargs != kAll) return run_fast(self, args, nargs);
  ArrayFunctions& of_python = array_functions;
  if (args[0] == Py_None && of_python.world == nullptr) {
    of_python.world = PyObject_CallNoArgs(of_python.make_world);
    if (of_python.world == nullptr) return nullptr;
  }
  PyObject* const comm = args[0] == Py_None ? of_python.world : args[0];
  if (args[4] == Py_None && args[5] == Py_None && is_intracommunicator(comm)) {
    const std::array<PyObject*, 4> given = {comm, args[1], args[2], args[3]};
    PyObject* const result = run_fast(self, given.data(), given.size());
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
  }
  const std::string_view name = name_of(kind_of(self));
  PyObject* const kind =
      PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
  if (kind == nullptr) return nullptr;
  const std::array<PyObject*, kAll + 1> all = {kind,    comm,    args[1], args[2],
                                               args[3], args[4], args[5]};
  PyObject* const result =
      PyObject_Vectorcall(of_python.look_closer, all.data(), all.size(), nullptr);
  Py_DECREF(kind);
  return result;
}

// Starts the call if it is on arrays in host memory and the fifth argument is true.
PyObject* describe_array(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  const bool starts = nargs == 5 && args[4] == Py_True;
  return with_given(args, nargs, [&](Communicator& comm, const Given& given) -> PyObject* {
    auto found = describe(kind_of(self), comm, given);
    if (!found) return of_python();
    PlainCall& made = found->made;
    if (found->copy_to != nullptr) {
      found->copy();
      made.call.out.data = found->copy_to;
    }
    if (!starts || !made.call.on_host()) {
      py::object call = py::cast(
          std::make_shared<PyCall>(PyCall{std::move(made.call), {}, std::move(made.placement)}));
      return py::make_tuple(std::move(call), std::move(found->result)).release().ptr();
    }
    if (comm.is_over()) require_running_mpi();
    const OneThread one_thread(comm);
    made.call.mpi_request = false;
    py::object request =
        make_array_request(comm.start_unless_ended(made.call), given.x, std::move(found->result));
    warn_if_left_to_mpi(comm);
    return request.release().ptr();
  });
}

constexpr const char* kRuns =
    "Of (comm, x, op or root, out, stream, plan). Blocks; the result. Without the last two "
    "NotImplemented where the Python path has to read the arguments.";
constexpr const char* kDescribes =
    "Of (comm, x, op or root, out), and whether to start it. Its request; a tuple of the call, to "
    "be started, and the result; or NotImplemented, likewise.";

void add_function(py::module_& m, Kind kind, std::string_view ending, PyCFunction function,
                  const char* doc) {
  // As long as the process, as its functions may live so long.
  const auto* const name = new std::string(std::string(name_of(kind)) + std::string(ending));
  auto* const row = new PyMethodDef{name->c_str(), function, METH_FASTCALL, doc};
  const py::int_ self(static_cast<int>(kind));
  const auto made = py::reinterpret_steal<py::object>(PyCFunction_New(row, self.ptr()));
  if (!made) throw py::error_already_set();
  m.attr(name->c_str()) = made;
}

}  // namespace

void bind_array_calls(py::module_& m) {
  m.def(
      "use_array_functions",
      [](const py::object& look_closer, const py::object& make_world) {
        array_functions.look_closer = py::object(look_closer).release().ptr();
        array_functions.make_world = py::object(make_world).release().ptr();
      },
      py::arg("look_closer"), py::arg("make_world"),
      "What carries out calls that take a closer look, and what makes the communicator of calls "
      "that name none.");
  for (std::size_t i = 0; i < kCalledKinds; ++i) {
    const Kind kind = static_cast<Kind>(i);
    if (info_of(kind).input == Part::kPieces) continue;  // no array is one of its arguments
    add_function(m, kind, "_array", as_method(run_array), kRuns);
    add_function(m, kind, "_call", as_method(describe_array), kDescribes);
  }
}

}  // namespace gradred
