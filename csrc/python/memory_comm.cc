#include "python/memory_comm.h"

#include <structmember.h>  // PyMemberDef, before Python 3.12

#include <utility>

#include "comm/communicator.h"

namespace py = pybind11;

namespace gradred {
namespace {

constexpr const char* kCapsule = "gradred.Communicator";

PyTypeObject* memory_comm_type = nullptr;
Py_ssize_t state_offset = 0;  // offset of the slot in an object

using Shared = std::shared_ptr<Communicator>;

void install_memory_comm(const py::object& comm_class) {
  const py::object slot = comm_class.attr("_state");
  if (!Py_IS_TYPE(slot.ptr(), &PyMemberDescr_Type)) throw py::type_error("_state is not a slot");
  state_offset = reinterpret_cast<PyMemberDescrObject*>(slot.ptr())->d_member->offset;
  memory_comm_type = reinterpret_cast<PyTypeObject*>(py::object(comm_class).release().ptr());
}

Shared& shared_in(const py::capsule& state) {
  return *static_cast<Shared*>(PyCapsule_GetPointer(state.ptr(), kCapsule));
}

}  // namespace

py::capsule memory_comm_capsule(Shared state) {
  return py::capsule(new Shared(std::move(state)), kCapsule, [](PyObject* capsule) {
    delete static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule));
  });
}

Communicator* memory_comm_state(PyObject* comm) {
  if (memory_comm_type == nullptr || !PyObject_TypeCheck(comm, memory_comm_type)) return nullptr;
  PyObject* capsule =
      *reinterpret_cast<PyObject**>(reinterpret_cast<std::byte*>(comm) + state_offset);
  if (capsule == nullptr) return nullptr;
  Communicator* state = static_cast<Shared*>(PyCapsule_GetPointer(capsule, kCapsule))->get();
  return state->liveness().freed() ? nullptr : state;
}

void bind_memory_comm(py::module_& m) {
  m.def("install_memory_comm", &install_memory_comm, py::arg("comm_class"),
        "Its objects hold what shrink() and connect() give as their state in the slot `_state`.");
  m.def(
      "free_memory_comm",
      [](const py::capsule& state) { shared_in(state)->liveness().forget_handle(); },
      py::arg("state"));
  m.def(
      "memory_comm_is_free",
      [](const py::capsule& state) { return shared_in(state)->liveness().freed(); },
      py::arg("state"));
}

}  // namespace gradred
