// The extension module gradred._core: one bind function per file, and the exceptions.
#include <pybind11/pybind11.h>

#include <exception>

#include "node/process.h"
#include "python/errors.h"
#include "python/numpy.h"

namespace gradred {

void bind_calls(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_mpi4py(pybind11::module_& m);
void bind_profile(pybind11::module_& m);
void bind_reduce(pybind11::module_& m);
void bind_schedules(pybind11::module_& m);
void bind_shrink(pybind11::module_& m);
void bind_threads(pybind11::module_& m);

}  // namespace gradred

PYBIND11_MODULE(_core, m) {
  gradred::this_process();  // both are looked up while files can still be opened
  gradred::host_id();
  m.doc() = "The C++ core of gradred; use the package gradred.";
  if (!gradred::load_numpy()) throw pybind11::error_already_set();
  pybind11::register_local_exception_translator(gradred::translate);
  gradred::bind_reduce(m);
  gradred::bind_schedules(m);
  gradred::bind_threads(m);
  gradred::bind_memory(m);
  gradred::bind_mpi4py(m);
  gradred::bind_calls(m);
  gradred::bind_profile(m);
  gradred::bind_shrink(m);
}
