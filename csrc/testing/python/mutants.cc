// Python binding of the mutation test of schedules.
#include "testing/mutants.h"

#include <pybind11/stl.h>

#include "schedule/schedule.h"
#include "testing/python/module.h"

namespace gradred {

namespace py = pybind11;

void bind_mutants(py::module_& m) {
  py::class_<MutationResult>(m, "MutationResult", "How the verifier judged changed schedules.")
      .def_readonly("mutants", &MutationResult::mutants)
      .def_readonly("rejected", &MutationResult::rejected)
      .def_readonly("equivalent", &MutationResult::equivalent)
      .def_readonly("different", &MutationResult::different);
  m.def("mutate_schedules", &mutation_test, py::arg("schedules"), py::arg("sample") = 0,
        py::arg("seed") = 1, py::call_guard<py::gil_scoped_release>());
}

}  // namespace gradred
