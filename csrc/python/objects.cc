// Pickled objects, which all ranks gather by one operation, or two.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <climits>
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
  static constexpr std::size_t kRoom = 252;

  std::uint32_t length;
  std::array<char, kRoom> data;
};
// Gathers `count` bytes of each rank. `step` differs from call to call of one exchange.
void gather_bytes(Communicator& comm, const void* mine, void* all, std::size_t count, int step,
                  WaitHook& hook) {
  Call call;
  call.kind = Kind::kAllgather;
  call.dtype = DType::kUInt8;
  call.count = count;
  call.in.data = mine;
  call.out.data = all;
  // Differs from arrays of bytes.
  call.layout = mix(static_cast<std::uint64_t>(step), std::string_view("Python objects"));
  comm.run(call, hook);
}

// Gathers all ranks' bytes, whose lengths all ranks know. Blocks of one length take one operation.
py::list gather_long(Communicator& comm, std::string_view given,
                     const std::vector<ObjectBlock>& blocks, std::size_t longest) {
  const auto all = py::reinterpret_steal<py::object>(
      PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(blocks.size() * longest)));
  if (!all) throw py::error_already_set();
  char* const data = PyByteArray_AS_STRING(all.ptr());
  std::ranges::copy(given, data + static_cast<std::size_t>(comm.rank()) * longest);
  {
    const OneThread one_thread(comm);
    GilHook hook;
    gather_bytes(comm, kInPlace, data, longest, 2, hook);
  }
  const auto view = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(all.ptr()));
  py::list found(blocks.size());
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    const std::size_t begin = rank * longest;
    found[rank] = view[py::slice(static_cast<Py_ssize_t>(begin),
                                 static_cast<Py_ssize_t>(begin + blocks[rank].length), 1)];
  }
  return found;
}

// Of (comm, bytes, most). Blocks. A list of the bytes of all ranks; None on all ranks if one has
// more than `most` bytes, or None for its bytes, or if their lengths differ too much to be sent as
// blocks of one length. All ranks give the same `most`.
PyObject* gather_objects(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  constexpr std::uint32_t kTooLong = 0xffffffff;
  constexpr std::size_t kLittle = 64 << 10;  // a block of so many bytes may be mostly empty
  if (nargs != 3 || !(PyBytes_Check(args[1]) || args[1] == Py_None) || !PyLong_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "a communicator, bytes or None, and the most of them");
    return nullptr;
  }
  try {
    Communicator& comm = communicator_of(args[0]);
    const std::size_t most = PyLong_AsSize_t(args[2]);
    std::string_view given;
    if (args[1] != Py_None) {
      given = {PyBytes_AS_STRING(args[1]), static_cast<std::size_t>(PyBytes_GET_SIZE(args[1]))};
    }
    const bool too_long = args[1] == Py_None || given.size() > std::min<std::size_t>(most, INT_MAX);
    ObjectBlock mine{};
    mine.length = too_long ? kTooLong : static_cast<std::uint32_t>(given.size());
    std::ranges::copy(given.substr(0, ObjectBlock::kRoom), mine.data.data());
    std::vector<ObjectBlock> all(static_cast<std::size_t>(comm.size()));
    {
      const OneThread one_thread(comm);
      GilHook hook;
      gather_bytes(comm, &mine, all.data(), sizeof mine, 1, hook);
    }
    std::size_t longest = 0, sum = 0;
    for (const ObjectBlock& one : all) {
      if (one.length == kTooLong) Py_RETURN_NONE;
      longest = std::max<std::size_t>(longest, one.length);
      sum += one.length;
    }
    if (longest > ObjectBlock::kRoom) {
      if (longest > kLittle && all.size() * longest > 2 * sum) Py_RETURN_NONE;
      return gather_long(comm, given, all, longest).release().ptr();
    }
    py::list found(all.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      found[rank] = py::bytes(all[rank].data.data(), all[rank].length);
    }
    return found.release().ptr();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

PyMethodDef object_functions[] = {
    {"gather_objects", as_method(gather_objects), METH_FASTCALL,
     "gather_objects(comm, data, most, /)\n--\n\n"
     "Return the bytes of all ranks; None on all ranks if one has more than `most`, or none, or if "
     "their lengths differ too much. Blocks."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_objects(py::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), object_functions) != 0) throw py::error_already_set();
}

}  // namespace gradred
