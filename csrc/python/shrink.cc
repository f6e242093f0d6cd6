// _core.shrink and the objects that it is for. All of them have one handle, MPI_COMM_NULL, so the
// state stands in a slot of the object, as a capsule that shares it.
#include "python/shrink.h"

#include <pybind11/pybind11.h>
#include <structmember.h>  // PyMemberDef, before Python 3.12

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "python/mpi4py.h"
#include "python/one_thread.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

constexpr const char* kCapsule = "gradred.Communicator";

PyTypeObject* shrunk_type = nullptr;
Py_ssize_t state_offset = 0;  // of the slot in an object

using Shared = std::shared_ptr<Communicator>;

py::capsule capsule_of(Shared state) {
  return py::capsule(new Shared(std::move(state)), kCapsule, [](PyObject* capsule) {
    delete static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule));
  });
}

void install_shrunk(const py::object& shrunk_class) {
  const py::object slot = shrunk_class.attr("_state");
  if (!Py_IS_TYPE(slot.ptr(), &PyMemberDescr_Type)) throw py::type_error("_state is no slot");
  state_offset = reinterpret_cast<PyMemberDescrObject*>(slot.ptr())->d_member->offset;
  shrunk_type = reinterpret_cast<PyTypeObject*>(py::object(shrunk_class).release().ptr());
}

py::tuple shrink(const py::object& comm) {
  const Shared old = communicator_of(comm.ptr()).shared_from_this();
  std::vector<int> ended;
  Shared made;
  {
    const OneThread one_thread(*old);
    GilHook hook;
    made = old->shrink(hook, ended);
  }
  const int rank = made->rank(), size = made->size();
  return py::make_tuple(capsule_of(std::move(made)), rank, size);
}

Shared& shared_in(const py::capsule& state) {
  return *static_cast<Shared*>(PyCapsule_GetPointer(state.ptr(), kCapsule));
}

}  // namespace

Communicator* shrunk_state(PyObject* comm) {
  if (shrunk_type == nullptr || !PyObject_TypeCheck(comm, shrunk_type)) return nullptr;
  PyObject* capsule =
      *reinterpret_cast<PyObject**>(reinterpret_cast<std::byte*>(comm) + state_offset);
  if (capsule == nullptr) return nullptr;
  Communicator* state = static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule))->get();
  return state->freed() ? nullptr : state;
}

void bind_shrink(py::module_& m) {
  m.def("install_shrunk", &install_shrunk, py::arg("shrunk_class"),
        "Its objects hold what shrink() gives as their state in the slot `_state`.");
  m.def("shrink", &shrink, py::arg("comm"),
        "State, rank and size of a communicator of the ranks that live. Blocks, and makes no MPI "
        "call that needs a peer.");
  m.def(
      "free_shrunk", [](const py::capsule& state) { shared_in(state)->free_shrunk(); },
      py::arg("state"));
  m.def(
      "shrunk_is_free", [](const py::capsule& state) { return shared_in(state)->freed(); },
      py::arg("state"));
}

}  // namespace gradred
