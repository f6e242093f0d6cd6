// Ctrl-C during a wait. Handlers of the program's own run after the call, as with mpi4py: they
// might change an array that some peers have read and others have not. Python's handler for Ctrl-C
// only raises KeyboardInterrupt, so it can end a wait.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace gradred {

// Belongs to one wait. All functions need the GIL.
class CtrlC {
 public:
  static constexpr std::uint64_t kLookEveryNs = 30'000'000;

  CtrlC() = default;
  // PyOS_InterruptOccurred() has taken the signal from Python, which gets it back:
  // KeyboardInterrupt is raised after the call.
  ~CtrlC() {
    if (raise_at_ns_ != 0) [[unlikely]] {
      PyErr_SetInterrupt();
    }
  }
  CtrlC(const CtrlC&) = delete;
  CtrlC& operator=(const CtrlC&) = delete;

  // Looks for Ctrl-C, and returns when to look again. A call whose peers come within the grace
  // period ends as usual, and the communicator stays usable. Otherwise this throws PythonError with
  // KeyboardInterrupt.
  std::uint64_t look(std::uint64_t now_ns);

 private:
  std::uint64_t raise_at_ns_ = 0;  // 0: Ctrl-C has not been pressed
};

void bind_ctrl_c(pybind11::module_& m);

}  // namespace gradred
