#include "python/mpi_only.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/errors.h"
#include "python/names.h"
#include "python/numpy.h"
#include "python/one_thread.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

struct Known {
  int type = -1;
  Kind kind{};
  Op op{};
  std::size_t bytes = 0;  // of a block
  std::uint64_t compared = 0;

  bool is_for(const MpiOnly::Made& made) const {
    return type == made.type && kind == made.kind && op == made.op && bytes == made.count;
  }
};

// The calls that Python code has looked at last. The caller holds the GIL.
std::array<Known, 16> known_calls{};
std::size_t oldest = 0;

const Known* find_known(const MpiOnly::Made& made) {
  const auto* const found =
      std::ranges::find_if(known_calls, [&](const Known& known) { return known.is_for(made); });
  return found == known_calls.end() ? nullptr : found;
}

// `array` is one of the call's, and `bytes` the length of a block.
void know_compared(const std::string& kind, const py::object& array, std::size_t bytes,
                   const py::object& op, std::uint64_t compared) {
  MpiOnly::Made made;
  ArrayView view{};
  const auto asked = op.is_none() ? Op::kSum : asked_op(op.ptr());
  if (!asked || !MpiOnly::read(array.ptr(), 1, Access::kRead, made, view)) return;
  made.kind =
      find_tag<Kind>(kKinds, kind, "kind of call", [](const KindInfo& x) { return x.name; });
  made.op = *asked;
  made.count = bytes;
  if (find_known(made) != nullptr) return;
  known_calls[oldest] = {made.type, made.kind, made.op, made.count, compared};
  oldest = (oldest + 1) % known_calls.size();
}

}  // namespace

bool MpiOnly::read(PyObject* given, std::size_t blocks, Access access, Made& made, Array& array) {
  int type = -1;
  if (!view_bytes(given, array, type) || (access == Access::kWrite && !array.writable))
    return false;
  if (made.type != -1 && made.type != type) return false;
  made.type = type;
  const bool equal = array.count % blocks == 0;
  array.count /= blocks;
  return equal;
}

std::optional<std::uint64_t> compared_by_ranks(const MpiOnly::Made& made) {
  const Known* const known = find_known(made);
  return known != nullptr ? std::optional(known->compared) : std::nullopt;
}

void agree_on(Communicator& comm, const MpiOnly::Made& made, std::uint64_t compared) {
  const OneThread one_thread(comm);
  GilHook hook;
  try {
    comm.leave_to_mpi(made.kind, compared, hook);
  } catch (const UsageError& error) {
    // The ranks exchange too few bytes for names, so each adds its own call.
    throw UsageError(std::string(error.what()) + ". This rank asked for " +
                     std::string(name_of(made.kind)) + " of " + std::to_string(made.count) +
                     " bytes with " + std::string(name_of(made.op)));
  }
}

std::optional<PyObject*> call_mpi4py(PyObject* method, PyObject* self, const Placed& args, Op op) {
  const Mpi4py& known = Mpi4py::get();
  PyObject* const given = known.ops[static_cast<std::size_t>(op)];
  if (given == nullptr) return std::nullopt;
  PyObject* const send = is_in_place(args.needed[0]) ? known.in_place : args.needed[0];
  const std::array<PyObject*, 4> all = {self, send, args.needed[1], given};
  return PyObject_Vectorcall(method, all.data(), all.size(), nullptr);
}

void bind_mpi_only(py::module_& m) {
  m.def("know_compared", &know_compared, py::arg("kind"), py::arg("array"), py::arg("bytes"),
        py::arg("op"), py::arg("compared"),
        "What the ranks compare of a call on such arrays, whose blocks have so many bytes. From "
        "now on the same call needs no Python code, if only the MPI has the type of `array`.");
}

}  // namespace gradred
