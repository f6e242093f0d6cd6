// What a Python thread does while it waits: let go of the GIL, look for signals.
#pragma once

#include <Python.h>

#include "base/clock.h"
#include "comm/call.h"
#include "engine/callbacks.h"
#include "python/errors.h"
#include "python/gil.h"

namespace gradred {

// Holds the GIL through the first microsecond of a wait (letting go costs 50 to 100 ns), then
// releases it; every 50 ms takes it back to see whether Ctrl-C was pressed.
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

// Of who waits for a request, and may be kept by callbacks meanwhile where no thread calls them.
class RequestHook final : public GilHook {
 public:
  void waiting() override {
    GilHook::waiting();
    done_callbacks().call_without_threads();
  }
};

}  // namespace gradred
