// The extension module gradred._core: one bind function per file, and the exceptions.
#include <pybind11/pybind11.h>

#include <exception>
#include <string>

#include "liveness/process.h"
#include "python/interface.h"
#include "python/py_errors.h"

namespace gradred {

void bind_array_calls(pybind11::module_& m);
void bind_array_request(pybind11::module_& m);
void bind_buffers(pybind11::module_& m);
void bind_calls(pybind11::module_& m);
void bind_comm(pybind11::module_& m);
void bind_ctrl_c(pybind11::module_& m);
void bind_device_arrays(pybind11::module_& m);
void bind_jax(pybind11::module_& m);
void bind_jax_mpi(pybind11::module_& m);
void bind_knobs(pybind11::module_& m);
void bind_liveness(pybind11::module_& m);
void bind_many(pybind11::module_& m);
void bind_messages(pybind11::module_& m);
void bind_named(pybind11::module_& m);
void bind_handles(pybind11::module_& m);
void bind_group_methods(pybind11::module_& m);
void bind_tensors(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_mpi4py(pybind11::module_& m);
void bind_objects(pybind11::module_& m);
void bind_operation(pybind11::module_& m);
void bind_reduce(pybind11::module_& m);
void bind_request(pybind11::module_& m);
void bind_schedules(pybind11::module_& m);
void bind_simulate(pybind11::module_& m);
void bind_memory_comm(pybind11::module_& m);
void bind_mpi_only(pybind11::module_& m);
void bind_without_mpi(pybind11::module_& m);

}  // namespace gradred

PYBIND11_MODULE(_core, m) {
  if (const std::string folder = gradred::folder_of_another_interface(); !folder.empty()) {
    throw pybind11::import_error(
        "gradred._core was built with another version of the Python files in " + folder +
        ". Build it again: python -m pip install --editable . in "
        "gradred's folder");
  }
  gradred::this_process();  // both need files, which may not open later
  gradred::host_id();
  m.doc() = "The C++ core of gradred; use the package gradred.";
  pybind11::register_local_exception_translator(gradred::translate);
  gradred::bind_reduce(m);
  gradred::bind_schedules(m);
  gradred::bind_simulate(m);
  gradred::bind_memory(m);
  gradred::bind_mpi4py(m);
  gradred::bind_objects(m);
  gradred::bind_operation(m);
  gradred::bind_request(m);
  gradred::bind_calls(m);
  gradred::bind_comm(m);
  gradred::bind_ctrl_c(m);
  gradred::bind_array_calls(m);
  gradred::bind_array_request(m);
  gradred::bind_buffers(m);
  gradred::bind_many(m);
  gradred::bind_messages(m);
  gradred::bind_named(m);
  gradred::bind_handles(m);
  gradred::bind_group_methods(m);
  gradred::bind_jax(m);
  gradred::bind_jax_mpi(m);
  gradred::bind_tensors(m);
  gradred::bind_device_arrays(m);
  gradred::bind_knobs(m);
  gradred::bind_liveness(m);
  gradred::bind_memory_comm(m);
  gradred::bind_mpi_only(m);
  gradred::bind_without_mpi(m);
}
