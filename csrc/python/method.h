// A function of any arguments as Python's tables of methods want it.
#pragma once

#include <Python.h>

namespace gradred {

template <class Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace gradred
