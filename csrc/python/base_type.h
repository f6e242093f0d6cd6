// Types that derive from mpi4py's.
#pragma once

#include <Python.h>

namespace gradred {

// Deallocates what the type above `own`, the tp_dealloc of a heap type, has in the object. That
// releases the reference to the object's type if it is a heap type itself, as in mpi4py's wheels
// for the stable ABI; else nobody has, so this function does.
inline void dealloc_base(PyObject* self, destructor own) {
  PyTypeObject* const type = Py_TYPE(self);
  PyTypeObject* base = type;
  while (base->tp_dealloc != own) base = base->tp_base;
  while (base->tp_dealloc == own) base = base->tp_base;
  const bool is_heap_type = PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) != 0;
  base->tp_dealloc(self);
  if (!is_heap_type) Py_DECREF(type);
}

}  // namespace gradred
