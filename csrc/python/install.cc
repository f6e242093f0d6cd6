// Finds the MPI that mpi4py has loaded, and takes from Python what the extension needs of it.
#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <string>

#include "base/errors.h"
#include "python/comm.h"
#include "python/comm_calls.h"
#include "python/mpi4py.h"
#include "python/numpy.h"
#include "python/py_errors.h"
#include "runtime/rank_process.h"

namespace py = pybind11;

namespace gradred {
namespace {

// An attribute of mpi4py.MPI. The reference is never released.
PyObject* keep(const py::object& mpi4py, const char* name) {
  return py::object(mpi4py.attr(name)).release().ptr();
}

PyTypeObject* keep_type(const py::object& mpi4py, const char* name) {
  return reinterpret_cast<PyTypeObject*>(keep(mpi4py, name));
}

void* loaded_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr) throw UsageError("not loaded: " + path + "; import mpi4py.MPI first");
  return library;
}

// If the program was started with gradred's library for programs of any language (csrc/preload),
// that begins no core of its own from now on.
void replace_preloaded_library() {
  using StandAside = void (*)();
  const auto stand_aside = reinterpret_cast<StandAside>(dlsym(RTLD_DEFAULT, "gradred_stand_aside"));
  if (stand_aside != nullptr) stand_aside();
}

void install(const py::object& mpi4py, const py::object& comm_class, const py::object& when_alone,
             const py::dict& closer_looks, const py::object& on_timeout,
             const py::object& disagreement) {
  if (!load_numpy()) throw py::error_already_set();
  void* const library = loaded_library(mpi4py.attr("__file__").cast<std::string>());
  mpi::load(library);
  Mpi4py& known = Mpi4py::get();
  const py::object world = mpi4py.attr("COMM_WORLD");
  known.handle_offset = mpi4py.attr("_addressof")(world).cast<std::size_t>() -
                        reinterpret_cast<std::size_t>(world.ptr());
  if (handle_of(world.ptr()) != mpi::get().is.comm_world) {
    throw Error(
        "mpi4py's communicators do not look as expected: this mpi4py is too new or too old");
  }
  known.comm_type = keep_type(mpi4py, "Comm");
  known.datatype_type = keep_type(mpi4py, "Datatype");
  known.op_type = keep_type(mpi4py, "Op");
  known.in_place = keep(mpi4py, "IN_PLACE");
  known.type_codes = keep(mpi4py, "_typedict");
  known.when_alone = py::object(when_alone).release().ptr();
  python_errors().on_timeout = py::object(on_timeout).release().ptr();
  python_errors().disagreement = py::object(disagreement).release().ptr();
  for (std::size_t op = 0; op < kOps; ++op) {
    std::string name(kOpInfo[op].name);
    for (char& letter : name) letter = static_cast<char>(letter - 'a' + 'A');
    if (py::hasattr(mpi4py, name.c_str())) known.ops[op] = keep(mpi4py, name.c_str());
  }
  add_methods(reinterpret_cast<PyTypeObject*>(comm_class.ptr()), closer_looks.ptr());
  replace_preloaded_library();
  begin(library);
}

}  // namespace

void bind_mpi4py(py::module_& m) {
  m.def(
      "install", &install, py::arg("mpi4py"), py::arg("comm_class"), py::kw_only(),
      py::arg("when_alone"), py::arg("closer_looks"), py::arg("on_timeout"),
      py::arg("disagreement"),
      "Find the MPI that mpi4py has loaded and give `comm_class` its methods. `when_alone` is "
      "called before a communicator of size 1 communicates, and may refuse that; "
      "`closer_looks` has a function for each of these methods, by name, for arguments that take "
      "a closer look; `on_timeout` gets the text of an error, whether this rank's own time is over "
      "and the number of the failure, and returns the path of a report, or None; "
      "`disagreement` makes an error of the text of a disagreement and of what this rank has "
      "passed, or None.");
  m.def("mpi_family", [] { return std::string(mpi::name_of(mpi::get().family)); });
  m.def("mpi_version", [] { return mpi::get().version(); });
  m.def(
      "datatype_name",
      [](const py::object& datatype) -> py::object {
        const auto dtype = mpi::get().dtype(handle_of(datatype.ptr()));
        if (!dtype) return py::none();
        return py::str(std::string(name_of(*dtype)));
      },
      py::arg("datatype"),
      "Return NumPy's name of an MPI.Datatype, None for those that gradred leaves to the MPI.");
  m.def(
      "op_name",
      [](const py::object& op) -> py::object {
        const auto found = asked_op(op.ptr());
        if (!found) return py::none();
        return py::str(std::string(name_of(*found)));
      },
      py::arg("op"),
      "Return the name of an operation that is given by an MPI.Op or by its name. None if gradred "
      "has no "
      "such operation, or if it needs a factor.");
}

}  // namespace gradred
