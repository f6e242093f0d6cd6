#include "python/gil.h"

#include <unistd.h>

namespace gradred {
namespace {

// Unwinding goes no further than to its destructor, unless `passed` is set. A catch (...) would not
// do: within another catch block it ends the process. Both need the C library's own unwinder,
// libgcc_s.so, linked: with a second one in the extension the first landing aborts.
class Barrier {
 public:
  Barrier() = default;
  ~Barrier() {
    while (!passed) pause();
  }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  bool passed = false;
};

}  // namespace

// Not inlined: in a noexcept function the compiler drops destructors that come before its end.
[[gnu::noinline]] void take_gil_back(PyThreadState* saved) {
  Barrier barrier;
  PyEval_RestoreThread(saved);
  barrier.passed = true;
}

[[gnu::noinline]] void call_python(const std::function<void()>& call) {
  Barrier barrier;
  call();
  barrier.passed = true;
}

}  // namespace gradred
