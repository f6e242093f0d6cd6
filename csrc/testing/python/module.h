// Functions that add the parts of the extension module _core_testing.
#pragma once

#include <pybind11/pybind11.h>

namespace gradred {

void bind_mutants(pybind11::module_& m);
void bind_reduce(pybind11::module_& m);
void bind_status_page(pybind11::module_& m);
void bind_threads(pybind11::module_& m);

}  // namespace gradred
