// Conversion of C++ exceptions to Python exceptions.
#pragma once

#include <Python.h>

#include <exception>

namespace gradred {

// Thrown through C++ frames while a Python exception is set.
struct PythonError {};

// Python functions for errors; nullptr before install().
struct PythonErrors {
  PyObject* on_timeout = nullptr;    // writes a report of a TimeoutError
  PyObject* disagreement = nullptr;  // makes the error, which shows this rank's arguments
};
PythonErrors& python_errors();

// Sets the Python exception for a caught C++ exception. The caller holds the GIL and is in a catch
// block. If the ranks' calls differ, the text includes `passed`, this rank's arguments; nullptr:
// they are unknown.
void set_python_error(std::exception_ptr thrown, PyObject* passed = nullptr) noexcept;

// Exception translator for pybind11. It passes exceptions that are not gradred's on to the next
// translator.
void translate(std::exception_ptr thrown);

}  // namespace gradred
