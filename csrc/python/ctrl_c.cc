#include "python/ctrl_c.h"

#include <csignal>

#include "python/py_errors.h"

namespace py = pybind11;

namespace gradred {
namespace {

constexpr std::uint64_t kGraceNs = 30'000'000;

// Set once, never released.
PyObject* getsignal = nullptr;
PyObject* default_int_handler = nullptr;

bool raises_keyboard_interrupt() {
  const auto handler = py::handle(getsignal)(SIGINT);
  return handler.is(py::handle(default_int_handler));
}

}  // namespace

std::uint64_t CtrlC::look(std::uint64_t now_ns) {
  if (raise_at_ns_ != 0) {
    raise_at_ns_ = 0;
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw PythonError{};
  }
  if (!raises_keyboard_interrupt() || PyOS_InterruptOccurred() == 0) return now_ns + kLookEveryNs;
  return raise_at_ns_ = now_ns + kGraceNs;
}

void bind_ctrl_c(py::module_&) {
  const auto in_c = py::module_::import("_signal");
  getsignal = py::object(in_c.attr("getsignal")).release().ptr();
  default_int_handler = py::object(in_c.attr("default_int_handler")).release().ptr();
}

}  // namespace gradred
