#include "python/mpi4py.h"

#include <pthread.h>

#include "base/errors.h"
#include "progress/fork_guard.h"
#include "python/gil.h"
#include "python/memory_comm.h"
#include "python/py_errors.h"

namespace gradred {
namespace {

// Cache from handles to states, so that a call need not ask MPI. An entry is valid only until its
// communicator is freed. The shared pointer keeps the state readable until the entry is replaced.
struct Remembered {
  mpi::Handle handle = 0;
  std::shared_ptr<Communicator> state;
};
constexpr std::size_t kRemembered = 64;

std::array<Remembered, kRemembered>& remembered() {
  static auto* entries = new std::array<Remembered, kRemembered>;
  return *entries;
}

std::size_t place_of(mpi::Handle handle) {
  return (handle ^ handle >> 6 ^ handle >> 12) % kRemembered;
}

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

// A forked child finds no cached state. It calls Communicator::of(), which refuses.
void forget_handles_in_forks() {
  pthread_atfork(nullptr, nullptr, [] {
    for (Remembered& entry : remembered()) entry.handle = 0;
  });
}

Mpi4py& Mpi4py::get() {
  static Mpi4py known;
  return known;
}

void forget_freed() {
  for (Remembered& entry : remembered()) {
    if (entry.state && entry.state->liveness().freed()) entry = {0, nullptr};
  }
}

Communicator& communicator_of(PyObject* comm) {
  const mpi::Handle handle = handle_of(comm);
  Remembered& entry = remembered()[place_of(handle)];
  if (entry.handle == handle && entry.state && !entry.state->liveness().freed()) [[likely]] {
    return *entry.state;
  }
  require_rank();
  if (mpi::get().normalise(handle) == mpi::get().is.comm_null) {
    if (Communicator* shrunk = memory_comm_state(comm)) return *shrunk;
  }
  std::shared_ptr<Communicator> state = Communicator::of(handle);
  require_right_launcher(*state);
  entry = {handle, std::move(state)};
  return *entry.state;
}

std::optional<Op> op_of(PyObject* op) {
  const Mpi4py& known = Mpi4py::get();
  for (std::size_t i = 0; i < kOps; ++i) {
    if (known.ops[i] == op) return static_cast<Op>(i);
  }
  if (PyObject_TypeCheck(op, known.op_type)) return mpi::get().op(handle_of(op));
  return std::nullopt;
}

}  // namespace gradred
