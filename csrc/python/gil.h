// How this extension releases and acquires the GIL.
//
// Once the program has ended, Python before 3.14 ends a daemon thread that acquires the GIL by
// pthread_exit(). The unwinding must not pass destructors, which are noexcept, or catch (...),
// which would have to rethrow it. The unwinder is the C library's, which may differ from the one
// linked with this extension. So the thread stays blocked for ever here, as it does from 3.14 on.
#pragma once

#include <Python.h>

#include <functional>

namespace gradred {

void take_gil_back(PyThreadState* saved);

// Runs a function that calls Python's C API and throws nothing. The caller holds the GIL. Python
// code may release the GIL and acquire it again meanwhile, which may block for ever as described
// above.
void call_python(const std::function<void()>& call);

// Same in any thread, with or without the GIL. Does nothing once Python has ended.
void with_gil(const std::function<void()>& call);

// Releases the GIL for a block that does not use Python.
class WithoutGil {
 public:
  WithoutGil() : saved_(PyEval_SaveThread()) {}
  ~WithoutGil() { take_gil_back(saved_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* saved_;
};

}  // namespace gradred
