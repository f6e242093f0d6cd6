// Memory for arrays, as NumPy takes it.
#include <pybind11/pybind11.h>

#include "node/array_memory.h"
#include "python/gil.h"

namespace py = pybind11;

namespace gradred {
namespace {

py::dict array_interface(const ArrayMemory& memory) {
  py::dict described;
  described["shape"] = py::make_tuple(memory.bytes());
  described["typestr"] = "|u1";
  described["data"] = py::make_tuple(reinterpret_cast<std::uintptr_t>(memory.data()), false);
  described["version"] = 3;
  return described;
}

}  // namespace

void bind_memory(py::module_& m) {
  py::class_<ArrayMemory>(m, "ArrayMemory",
                          "Zero bytes that forked children share; freed with the object.")
      .def(py::init<std::size_t>(), py::arg("bytes"), py::call_guard<WithoutGil>())
      .def_property_readonly("__array_interface__", &array_interface);
}

}  // namespace gradred
