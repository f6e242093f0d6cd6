#include "python/strangers.h"

#include <Python.h>

#include "base/clock.h"
#include "python/gil.h"

namespace gradred {

namespace {

void call_strangers(const char* function) noexcept {
  call_python([=] {
    PyObject* module = PyImport_ImportModule("gradred._strangers");
    PyObject* result = module != nullptr ? PyObject_CallMethod(module, function, nullptr) : nullptr;
    if (result == nullptr) PyErr_WriteUnraisable(module);
    Py_XDECREF(result);
    Py_XDECREF(module);
  });
}

}  // namespace

void meet_strangers() noexcept { call_strangers("meet"); }
void await_strangers() noexcept { call_strangers("await_all"); }

void Search::look() noexcept {
  const std::uint64_t now = now_ns();
  if (begin_ns_ == 0) begin_ns_ = now;
  if (now - begin_ns_ < after_ns_) return;
  after_ns_ *= 2;
  meet_strangers();
}

}  // namespace gradred
