// _core.shrink and _core.connect, which make communicators that MPI does not know.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "comm/communicator.h"
#include "liveness/supervisor.h"
#include "node/memory/bootstrap.h"
#include "python/memory_comm.h"
#include "python/mpi4py.h"
#include "python/one_thread.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

using Shared = std::shared_ptr<Communicator>;

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
  return py::make_tuple(memory_comm_capsule(std::move(made)), rank, size);
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

}  // namespace

void bind_without_mpi(py::module_& m) {
  m.def(
      "connect", &connect, py::arg("rank"), py::arg("size"), py::arg("allgather"),
      "Return state, rank and size of a communicator of processes that need no MPI; they find each "
      "other by `allgather`. If they share no memory, return a text that says why, on all of "
      "them.");
  m.def("shrink", &shrink, py::arg("comm"),
        "Return state, rank and size of a communicator of the ranks that live. Blocks, and makes "
        "no MPI "
        "call that needs a peer.");
  m.def(
      "go_on_without", [](const std::vector<int>& ranks) { tell_left_out(ranks); },
      py::arg("ranks"),
      "Report to the launcher that this rank goes on without these ranks of MPI_COMM_WORLD, and no "
      "others. The job then does not end because they have ended, or because they will.");
}

}  // namespace gradred
