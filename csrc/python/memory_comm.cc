// _core.shrink, _core.connect and the communicators that they make. All have the handle
// MPI_COMM_NULL. So the object keeps its state in a slot, as a capsule with a shared pointer.
#include "python/memory_comm.h"

#include <pybind11/pybind11.h>
#include <structmember.h>  // PyMemberDef, before Python 3.12

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "comm/communicator.h"
#include "node/bootstrap.h"
#include "python/mpi4py.h"
#include "python/one_thread.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

constexpr const char* kCapsule = "gradred.Communicator";

PyTypeObject* memory_comm_type = nullptr;
Py_ssize_t state_offset = 0;  // offset of the slot in an object

using Shared = std::shared_ptr<Communicator>;

py::capsule capsule_of(Shared state) {
  return py::capsule(new Shared(std::move(state)), kCapsule, [](PyObject* capsule) {
    delete static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule));
  });
}

void install_memory_comm(const py::object& comm_class) {
  const py::object slot = comm_class.attr("_state");
  if (!Py_IS_TYPE(slot.ptr(), &PyMemberDescr_Type)) throw py::type_error("_state is not a slot");
  state_offset = reinterpret_cast<PyMemberDescrObject*>(slot.ptr())->d_member->offset;
  memory_comm_type = reinterpret_cast<PyTypeObject*>(py::object(comm_class).release().ptr());
}

// Setup calls through a Python function. The GIL is held.
class PythonCalls final : public Bootstrap {
 public:
  PythonCalls(int rank, int size, py::function allgather)
      : rank_(rank), size_(size), allgather_(std::move(allgather)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override { allgather(nullptr, 0, nullptr); }
  void allgather(const void* mine, std::size_t bytes, void* all) override {
    const py::bytes given(static_cast<const char*>(mine), bytes);
    const auto found = py::cast<std::vector<py::bytes>>(allgather_(given));
    auto* target = static_cast<char*>(all);
    if (found.size() != static_cast<std::size_t>(size_)) {
      throw UsageError(explained("of " + std::to_string(found.size()) + " ranks"));
    }
    for (const py::bytes& one : found) {
      const std::string_view theirs = one;
      if (theirs.size() != bytes) {
        throw UsageError(explained("of " + std::to_string(theirs.size()) + " bytes where " +
                                   std::to_string(bytes) + " were given"));
      }
      target = std::ranges::copy(theirs, target).out;
    }
  }

 private:
  std::string explained(const std::string& found) const {
    return "connect: allgather returned something " + found + ". It has to return what each of " +
           std::to_string(size_) + " ranks gave, by rank.";
  }

  const int rank_, size_;
  const py::function allgather_;
};

py::tuple state_of(Shared made) {
  const int rank = made->rank(), size = made->size();
  return py::make_tuple(capsule_of(std::move(made)), rank, size);
}

py::object connect(int rank, int size, py::function allgather) {
  PythonCalls calls(rank, size, std::move(allgather));
  std::string why_no_memory;
  Shared made = Communicator::connect(calls, why_no_memory);
  if (made == nullptr) return py::str(why_no_memory);
  return state_of(std::move(made));
}

py::tuple shrink(const py::object& comm) {
  const Shared old = communicator_of(comm.ptr()).shared();
  std::vector<int> ended;
  Shared made;
  {
    const OneThread one_thread(*old);
    GilHook hook;
    made = old->shrink(hook, ended);
  }
  return state_of(std::move(made));
}

Shared& shared_in(const py::capsule& state) {
  return *static_cast<Shared*>(PyCapsule_GetPointer(state.ptr(), kCapsule));
}

}  // namespace

Communicator* memory_comm_state(PyObject* comm) {
  if (memory_comm_type == nullptr || !PyObject_TypeCheck(comm, memory_comm_type)) return nullptr;
  PyObject* capsule =
      *reinterpret_cast<PyObject**>(reinterpret_cast<std::byte*>(comm) + state_offset);
  if (capsule == nullptr) return nullptr;
  Communicator* state = static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule))->get();
  return state->liveness().freed() ? nullptr : state;
}

void bind_memory_comm(py::module_& m) {
  m.def("install_memory_comm", &install_memory_comm, py::arg("comm_class"),
        "Its objects hold what shrink() and connect() give as their state in the slot `_state`.");
  m.def("connect", &connect, py::arg("rank"), py::arg("size"), py::arg("allgather"),
        "The same of processes that need no MPI; they find each other by this function. If they "
        "share no memory, a text that says why, on all of them.");
  m.def("shrink", &shrink, py::arg("comm"),
        "State, rank and size of a communicator of the ranks that live. Blocks, and makes no MPI "
        "call that needs a peer.");
  m.def(
      "free_memory_comm",
      [](const py::capsule& state) { shared_in(state)->liveness().forget_handle(); },
      py::arg("state"));
  m.def(
      "memory_comm_is_free",
      [](const py::capsule& state) { return shared_in(state)->liveness().freed(); },
      py::arg("state"));
}

}  // namespace gradred
