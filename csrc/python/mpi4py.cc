#include "python/mpi4py.h"

#include <utility>

#include "base/errors.h"
#include "comm/known_handles.h"
#include "engine/fork_guard.h"
#include "python/gil.h"
#include "python/memory_comm.h"
#include "python/py_errors.h"

namespace gradred {
namespace {

// A communicator of one rank may be one of several started by the launcher of another MPI. Python
// code checks this. MPI.COMM_SELF always has one rank, so it is not checked.
void require_right_launcher(const Communicator& communicator) {
  if (communicator.size() > 1 || communicator.handle() == mpi::get().is.comm_self) return;
  PyObject* looked = nullptr;
  call_python([&] { looked = PyObject_CallNoArgs(Mpi4py::get().when_alone); });
  if (looked == nullptr) throw PythonError();
  Py_DECREF(looked);
}

}  // namespace

Mpi4py& Mpi4py::get() {
  static Mpi4py known;
  return known;
}

Communicator& communicator_of(PyObject* comm) {
  const mpi::Handle handle = handle_of(comm);
  KnownHandles& known = KnownHandles::get();
  if (Communicator* const found = known.find(handle)) [[likely]] {
    return *found;
  }
  require_rank();
  if (mpi::get().normalise(handle) == mpi::get().is.comm_null) {
    if (Communicator* shrunk = memory_comm_state(comm)) return *shrunk;
  }
  std::shared_ptr<Communicator> state = Communicator::of(handle);
  require_right_launcher(*state);
  Communicator& made = *state;
  known.put(handle, std::move(state));
  return made;
}

std::optional<Op> op_of(PyObject* op) {
  const Mpi4py& known = Mpi4py::get();
  for (std::size_t i = 0; i < kOps; ++i) {
    if (known.ops[i] == op) return static_cast<Op>(i);
  }
  if (known.op_type != nullptr && PyObject_TypeCheck(op, known.op_type)) {
    return mpi::get().op(handle_of(op));
  }
  return std::nullopt;
}

}  // namespace gradred
