// From the arguments of a communicator's methods to calls of the core.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "calls/call.h"
#include "comm/communicator.h"
#include "python/buffers.h"
#include "python/device_arrays.h"
#include "python/mpi4py.h"
#include "python/numpy.h"
#include "python/py_call.h"
#include "python/tensors.h"

namespace gradred {

struct PlainCall {
  Call call;
  Placement placement{};  // if not all arrays are in host memory
};

// A call on buffers of any form, and what it holds of them.
struct AnyCall : PlainCall {
  HeldBuffer send, recv;
};

// Describes a reduction by a predefined operation, of (input, result) in any of mpi4py's forms.
// `op` nullptr is a sum. Returns false if the Python path has to handle the arguments.
bool plain_reduction(Kind kind, int size, PyObject* const* buffers, PyObject* op, AnyCall& made);

// The operation that `op` selects. nullptr is a sum; else `op` is an MPI.Op or a name. Returns
// nullopt if the Python path has to handle it.
std::optional<Op> asked_op(PyObject* op);
bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes);

using Arguments = PyObject* const*;

// Policies for reading buffers, whose counts are those of one of `blocks` equal blocks. They return
// false if the Python path has to read a buffer. NumPy arrays only, which is fastest:
struct OnHost {
  using Array = ArrayView;
  using Made = Call;

  static bool read(PyObject* given, std::size_t blocks, Access access, Made&, Array& array) {
    if (!view_array(given, array) || (access == Access::kWrite && !array.writable)) return false;
    if (blocks <= 1) return true;
    const bool equal = array.count % blocks == 0;
    array.count /= blocks;
    return equal;
  }
};

// The object of a specification that has the memory: the first of a list or tuple.
inline PyObject* buffer_in(PyObject* given) {
  const bool is_several = PyList_Check(given) != 0 || PyTuple_Check(given) != 0;
  return is_several && PySequence_Fast_GET_SIZE(given) > 0 ? PySequence_Fast_GET_ITEM(given, 0)
                                                           : given;
}

// All forms, in host or device memory:
struct Anywhere {
  using Array = PlainArray;
  using Made = AnyCall;

  static bool read(PyObject* given, std::size_t blocks, Access access, Made& made, Array& array) {
    HeldBuffer& held = access == Access::kRead ? made.send : made.recv;
    const auto found = read_buffer(given, blocks, access, held);
    if (!found) return false;
    array = *found;
    if (access == Access::kWrite) tell_of_write(buffer_in(given));
    return true;
  }
};

// Sets the arrays of a call; `send` nullptr means in place. The caller sets the other fields.
inline Call& call_on(Call& call, const ArrayView* send, const ArrayView& recv) {
  call.in.data = send != nullptr ? send->data : kInPlace;
  call.out.data = recv.data;
  call.dtype = recv.dtype;
  return call;
}
inline Call& call_on(AnyCall& made, const PlainArray* send, const PlainArray& recv) {
  Call& call = call_on(made.call, send, static_cast<const ArrayView&>(recv));
  call.in.memory = memory_of(send != nullptr ? send->memory : nullptr);
  call.out.memory = memory_of(recv.memory);
  made.placement = placement_of(send, recv);
  return call;
}

inline bool is_in_place(PyObject* sendbuf) {
  return sendbuf == Mpi4py::get().in_place || sendbuf == Py_None;
}

// Input and result of a call: as many elements of one type, which do not overlap. If the call is
// in place, there is no input.
template <class Array>
struct Pair {
  Array send{}, recv{};
  bool in_place = false;

  const Array* input() const { return in_place ? nullptr : &send; }
};

// `given` and `got`: the blocks that the buffers have; counts are those of one block. Returns false
// if the Python path has to handle the arguments.
template <class Buffers>
[[gnu::always_inline]] inline bool read_pair(Arguments args, std::size_t given, std::size_t got,
                                             typename Buffers::Made& made,
                                             Pair<typename Buffers::Array>& pair) {
  pair.in_place = is_in_place(args[0]);
  const std::size_t recv_blocks = pair.in_place ? std::max(given, got) : got;
  auto& [send, recv, in_place] = pair;
  if (!Buffers::read(args[1], recv_blocks, Access::kWrite, made, recv)) return false;
  if (in_place) return true;
  if (!Buffers::read(args[0], given, Access::kRead, made, send)) return false;
  if (send.count != recv.count || send.dtype != recv.dtype) return false;
  const std::size_t bytes = recv.count * size_of(recv.dtype);
  return !overlap(send.data, given * bytes, recv.data, got * bytes);
}

// Finds the last argument, which is optional: `found` is nullptr if it is not given. Returns false
// if the Python path has to handle the arguments.
inline bool last_argument(Arguments args, Py_ssize_t nargs, PyObject* names, Py_ssize_t before,
                          const char* name, PyObject*& found) {
  if (names != nullptr && PyTuple_GET_SIZE(names) > 0) {
    if (nargs != before || PyTuple_GET_SIZE(names) != 1 ||
        PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), name) != 0) {
      return false;
    }
    found = args[before];
    return true;
  }
  if (nargs < before || nargs > before + 1) return false;
  found = nargs > before ? args[before] : nullptr;
  return true;
}

// Each of these reads the usual arguments of the methods for one kind of call. They return false if
// the Python path has to handle them.

template <class Buffers>
[[gnu::always_inline]] inline bool read_reduction(Kind kind, int size, Arguments args, PyObject* op,
                                                  typename Buffers::Made& made) {
  const std::size_t blocks = vector_counts(kind, size);
  Pair<typename Buffers::Array> pair;
  if (!read_pair<Buffers>(args, blocks, 1, made, pair)) return false;
  const auto known = asked_op(op);
  if (!known || find_reduction(*known, pair.recv.dtype) == nullptr) return false;
  Call& call = call_on(made, pair.input(), pair.recv);
  call.kind = kind;
  call.count = pair.recv.count;
  call.op = *known;
  return true;
}

template <Kind kReduction>
struct ReductionCall {
  static constexpr Kind kKind = kReduction;
  template <class Buffers>
  static bool read(const Communicator& comm, Arguments args, Py_ssize_t nargs, PyObject* names,
                   typename Buffers::Made& made) {
    PyObject* op = nullptr;
    return last_argument(args, nargs, names, 2, "op", op) &&
           read_reduction<Buffers>(kKind, comm.size(), args, op, made);
  }
};

struct AllgatherCall {
  static constexpr Kind kKind = Kind::kAllgather;
  template <class Buffers>
  static bool read(const Communicator& comm, Arguments args, Py_ssize_t nargs, PyObject* names,
                   typename Buffers::Made& made) {
    if (nargs != 2 || names != nullptr) return false;
    Pair<typename Buffers::Array> pair;
    const auto blocks = static_cast<std::size_t>(comm.size());
    if (!read_pair<Buffers>(args, 1, blocks, made, pair) || pair.recv.count == 0) return false;
    Call& call = call_on(made, pair.input(), pair.recv);
    call.kind = kKind;
    call.count = pair.recv.count;
    return true;
  }
};

struct BcastCall {
  static constexpr Kind kKind = Kind::kBcast;
  template <class Buffers>
  static bool read(const Communicator& comm, Arguments args, Py_ssize_t nargs, PyObject* names,
                   typename Buffers::Made& made) {
    PyObject* given = nullptr;
    if (!last_argument(args, nargs, names, 1, "root", given)) return false;
    if (given != nullptr && !PyLong_CheckExact(given)) return false;
    int overflow = 0;
    const long root = given == nullptr ? 0 : PyLong_AsLongAndOverflow(given, &overflow);
    if (overflow != 0 || root < 0 || root >= comm.size()) return false;
    const Access access = root == comm.rank() ? Access::kRead : Access::kWrite;
    typename Buffers::Array data{};
    if (!Buffers::read(args[0], 1, access, made, data) || data.count == 0) return false;
    Call& call = call_on(made, nullptr, data);
    call.kind = kKind;
    call.count = data.count;
    call.root = static_cast<int>(root);
    return true;
  }
};

}  // namespace gradred
