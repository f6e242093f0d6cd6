// Short pickled objects, which all ranks exchange by one operation in shared memory.
#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/signature.h"
#include "python/method.h"
#include "python/mpi4py.h"
#include "python/one_thread.h"
#include "python/py_errors.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

// A rank's block: the length of its pickled object, and the object if it fits. NumPy's scalars do.
struct ObjectBlock {
  static constexpr std::size_t kRoom = 254;
  static constexpr std::uint16_t kTooLong = kRoom + 1;

  std::uint16_t length;
  std::array<char, kRoom> data;
};
constexpr int kMostRanks = 16;  // each rank reads the objects of all: beyond, a tree does less

// Of (comm, bytes). Blocks. A list of the bytes of all ranks; None on all ranks if they do not
// share memory, or if some are too long.
PyObject* gather_short(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 || !PyBytes_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "a communicator and bytes");
    return nullptr;
  }
  try {
    Communicator& comm = communicator_of(args[0]);
    if (comm.size() == 1 || comm.size() > kMostRanks) Py_RETURN_NONE;
    const auto ranks = static_cast<std::size_t>(comm.size());
    const auto length = static_cast<std::size_t>(PyBytes_GET_SIZE(args[1]));
    const bool fits = length <= ObjectBlock::kRoom;
    ObjectBlock mine{};
    mine.length = fits ? static_cast<std::uint16_t>(length) : ObjectBlock::kTooLong;
    if (fits) std::memcpy(mine.data.data(), PyBytes_AS_STRING(args[1]), length);
    std::vector<ObjectBlock> all(ranks);
    {
      const OneThread one_thread(comm);
      GilHook hook;
      comm.prepare(hook);
      if (!comm.node_path().serves_all()) Py_RETURN_NONE;
      Call call;
      call.kind = Kind::kAllgather;
      call.dtype = DType::kUInt8;
      call.count = sizeof(ObjectBlock);
      call.in.data = &mine;
      call.out.data = all.data();
      call.layout = mix(1, std::string_view("Python objects"));  // differs from arrays of bytes
      comm.run(call, hook);
    }
    py::list found(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (all[rank].length == ObjectBlock::kTooLong) Py_RETURN_NONE;
      found[rank] = py::bytes(all[rank].data.data(), all[rank].length);
    }
    return found.release().ptr();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

PyMethodDef object_functions[] = {
    {"gather_short", as_method(gather_short), METH_FASTCALL,
     "gather_short(comm, data, /)\n--\n\n"
     "Return the bytes of all ranks; None on all ranks if they share no memory, or if some are too "
     "long. Blocks."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_objects(py::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), object_functions) != 0) throw py::error_already_set();
}

}  // namespace gradred
