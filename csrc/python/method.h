// Cast of a function with any signature to the type that Python's method tables need.
#pragma once

#include <Python.h>

namespace gradred {

template <class Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace gradred
