#include "python/errors.h"

#include <pybind11/pybind11.h>

#include "base/errors.h"

namespace gradred {
namespace {

// The Python classes are looked up when one is raised: gradred.errors may import this module.
void raise(const char* name, const char* text) noexcept {
  PyObject* errors = PyImport_ImportModule("gradred.errors");
  PyObject* type = errors != nullptr ? PyObject_GetAttrString(errors, name) : nullptr;
  if (type != nullptr) PyErr_SetString(type, text);
  Py_XDECREF(type);
  Py_XDECREF(errors);
}

}  // namespace

void set_python_error(std::exception_ptr thrown) noexcept {
  try {
    std::rethrow_exception(thrown);
  } catch (const PythonError&) {  // it is set already
  } catch (const UsageError& error) {
    raise("UsageError", error.what());
  } catch (const TimeoutError& error) {
    raise("TimeoutError", error.what());
  } catch (const PeerLost& error) {
    raise("PeerLost", error.what());
  } catch (const TransportError& error) {
    raise("TransportError", error.what());
  } catch (const DeviceError& error) {
    raise("DeviceError", error.what());
  } catch (const Error& error) {
    raise("Error", error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    raise("Error", error.what());
  }
}

void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const PythonError&) {
  } catch (const Error&) {
    set_python_error(thrown);
  }
}

}  // namespace gradred
