// How this extension lets go of the GIL and gets it back.
//
// Before 3.14 Python ends a daemon thread that asks for the GIL once the program has ended, by
// pthread_exit(). Its unwinding may pass neither destructors, which are noexcept, nor catch (...),
// which would have to throw it on, and it is done by the C library's unwinder, which may not be the
// one that this extension was linked with. So the thread stays where it is for good, as from 3.14
// on.
#pragma once

#include <Python.h>

#include <functional>

namespace gradred {

void take_gil_back(PyThreadState* saved);

// Runs what calls Python's C functions and throws nothing, with the GIL: Python code that they run
// may let go of it and want it back.
void call_python(const std::function<void()>& call);

// The same in any thread, whether it holds the GIL or not. Nothing happens once Python has ended.
void with_gil(const std::function<void()>& call);

// For a block that needs nothing of Python.
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
