// What a Python thread does during a wait: it releases the GIL and checks for signals.
#pragma once

#include <Python.h>

#include "base/clock.h"
#include "calls/call.h"
#include "engine/callbacks.h"
#include "python/gil.h"
#include "python/py_errors.h"

namespace gradred {

// Holds the GIL for the first microsecond of a wait, as releasing it takes 50 to 100 ns. Then it
// releases the GIL, and acquires it every 50 ms to check for Ctrl-C.
class GilHook : public WaitHook {
 public:
  GilHook() = default;
  ~GilHook() override { take_back(); }
  GilHook(const GilHook&) = delete;
  GilHook& operator=(const GilHook&) = delete;

  void waiting() override {
    long_work();
    const std::uint64_t now = now_ns();
    if (now < next_look_ns_) return;
    next_look_ns_ = now + 50'000'000;
    take_back();
    int signalled = 0;
    call_python([&] { signalled = PyErr_CheckSignals(); });
    if (signalled != 0) throw PythonError{};
    long_work();
  }

  void long_work() override {
    if (saved_ == nullptr) saved_ = PyEval_SaveThread();
  }

 private:
  void take_back() {
    if (saved_ != nullptr) take_gil_back(saved_);
    saved_ = nullptr;
  }

  PyThreadState* saved_ = nullptr;
  std::uint64_t next_look_ns_ = 0;
};

// For a wait for a request. If no threads call the callbacks of ended operations, it calls them.
class RequestHook final : public GilHook {
 public:
  void waiting() override {
    GilHook::waiting();
    done_callbacks().call_without_threads();
  }
};

}  // namespace gradred
