// From C++ exceptions to Python's.
#pragma once

#include <Python.h>

#include <exception>

namespace gradred {

// A Python exception is set and on its way; it travels through C++ frames as this.
struct PythonError {};

// Sets the Python exception for one that was caught; call with the GIL, from within a catch block.
// Where the ranks disagree about a call, it tells what this one has passed; null: nothing is known.
void set_python_error(std::exception_ptr thrown, PyObject* passed = nullptr) noexcept;

// The same as pybind11 wants it: exceptions that are not gradred's go on to the next translator.
void translate(std::exception_ptr thrown);

}  // namespace gradred
