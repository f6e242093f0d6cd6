// What a Python thread does during a wait: it releases the GIL and looks for Ctrl-C.
#pragma once

#include <Python.h>

#include "base/clock.h"
#include "calls/call.h"
#include "engine/callbacks.h"
#include "python/ctrl_c.h"
#include "python/gil.h"

namespace gradred {

// Holds the GIL for the first microsecond of a wait, as releasing it takes 50 to 100 ns. Then it
// releases the GIL, and acquires it every 30 ms to look for Ctrl-C.
class GilHook : public WaitHook {
 public:
  GilHook() = default;
  ~GilHook() override { take_back(); }
  GilHook(const GilHook&) = delete;
  GilHook& operator=(const GilHook&) = delete;

  void waiting() override {
    long_work();
    const std::uint64_t now = now_ns();
    if (next_look_ns_ == 0) next_look_ns_ = now + CtrlC::kLookEveryNs;
    if (now < next_look_ns_) return;
    take_back();
    next_look_ns_ = ctrl_c_.look(now);
    long_work();
  }

  void long_work() override {
    if (saved_ == nullptr) saved_ = PyEval_SaveThread();
  }

 protected:
  void take_back() {
    if (saved_ != nullptr) take_gil_back(saved_);
    saved_ = nullptr;
  }

 private:
  CtrlC ctrl_c_;  // destroyed last, with the GIL
  PyThreadState* saved_ = nullptr;
  std::uint64_t next_look_ns_ = 0;
};

// For a wait for a request. If no threads call the callbacks of ended operations, it calls them.
class RequestHook : public GilHook {
 public:
  void waiting() override {
    GilHook::waiting();
    done_callbacks().call_without_threads();
  }
};

}  // namespace gradred
