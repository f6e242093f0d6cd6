// This file is compiled without C++ exceptions. The C library then runs the cleanup handlers
// itself, by a jump to their frame, and no unwinder reaches the C++ frames above.
#include "python/gil.h"

#include <pthread.h>
#include <unistd.h>

namespace gradred {
namespace {

void park(void*) {
  while (true) pause();
}

}  // namespace

void take_gil_back(PyThreadState* saved) {
  pthread_cleanup_push(park, nullptr);
  PyEval_RestoreThread(saved);
  pthread_cleanup_pop(0);
}

void call_python(const std::function<void()>& call) {
  pthread_cleanup_push(park, nullptr);
  call();
  pthread_cleanup_pop(0);
}

void with_gil(const std::function<void()>& call) {
  if (Py_IsInitialized() == 0) return;
  pthread_cleanup_push(park, nullptr);
  const PyGILState_STATE before = PyGILState_Ensure();
  call();
  PyGILState_Release(before);
  pthread_cleanup_pop(0);
}

}  // namespace gradred
