// From the arguments of a communicator's methods to calls of the core.
#pragma once

#include <Python.h>

#include <algorithm>
#include <array>
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
    if (!read_buffer(given, blocks, access, held, array)) return false;
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
  if (!call.on_host()) made.placement = placement_of(send, recv);
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
// if the Python path has to handle the arguments. A reduction of a buffer into itself is in place,
// as in mpi4py from 4.2 on.
template <class Buffers>
[[gnu::always_inline]] inline bool read_pair(Arguments args, std::size_t given, std::size_t got,
                                             typename Buffers::Made& made,
                                             Pair<typename Buffers::Array>& pair,
                                             bool is_reduction = false) {
  pair.in_place = is_in_place(args[0]);
  const std::size_t recv_blocks = pair.in_place ? std::max(given, got) : got;
  auto& [send, recv, in_place] = pair;
  if (!Buffers::read(args[1], recv_blocks, Access::kWrite, made, recv)) return false;
  if (in_place) return true;
  if (!Buffers::read(args[0], given, Access::kRead, made, send)) return false;
  if (send.count != recv.count || send.dtype != recv.dtype) return false;
  if (is_reduction && send.data == recv.data) return in_place = true;
  const std::size_t bytes = recv.count * size_of(recv.dtype);
  return !overlap(send.data, given * bytes, recv.data, got * bytes);
}

// The names of a method's arguments, in order. The first `needed` have to be given, and one more
// may be.
struct MethodNames {
  std::array<const char*, 3> names;
  std::size_t needed;

  constexpr std::size_t count() const {
    return static_cast<std::size_t>(std::ranges::find(names, nullptr) - names.begin());
  }
};

// The arguments of a call in the order of the method's names.
struct Placed {
  Arguments needed;
  PyObject* option;  // nullptr: not given
};

// Arguments of which some are passed by name, in the order of the method's names; nullptr: not
// given.
using ByName = std::array<PyObject*, 3>;

// Places the arguments that are passed by name. Returns false if the method has no such name, or if
// an argument is given twice or missing.
bool place_named(const MethodNames& known, Arguments args, Py_ssize_t nargs, PyObject* names,
                 ByName& placed);

// Places all arguments of a call; `by_name` has to live as long as `placed`. Returns false if the
// Python path has to handle them: it raises the errors.
template <const MethodNames& kKnown>
[[gnu::always_inline]] inline bool place(Arguments args, Py_ssize_t nargs, PyObject* names,
                                         ByName& by_name, Placed& placed) {
  constexpr auto kNeeded = static_cast<Py_ssize_t>(kKnown.needed);
  constexpr auto kMost = static_cast<Py_ssize_t>(kKnown.count());
  if (nargs > kMost) return false;
  if (names != nullptr) [[unlikely]] {
    placed = {by_name.data(), nullptr};
    if (!place_named(kKnown, args, nargs, names, by_name)) return false;
    if (kMost > kNeeded) placed.option = by_name[kKnown.needed];
    return true;
  }
  placed = {args, nargs > kNeeded ? args[kNeeded] : nullptr};
  return nargs >= kNeeded;
}

// Each of these reads the usual arguments of the methods for one kind of call. They return false if
// the Python path has to handle them.

template <class Buffers>
[[gnu::always_inline]] inline bool read_reduction(Kind kind, int size, Arguments args, PyObject* op,
                                                  typename Buffers::Made& made) {
  const std::size_t blocks = vector_counts(kind, size);
  Pair<typename Buffers::Array> pair;
  if (!read_pair<Buffers>(args, blocks, 1, made, pair, true)) return false;
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
  static constexpr MethodNames kNames = {{"sendbuf", "recvbuf", "op"}, 2};
  template <class Buffers>
  static bool read(const Communicator& comm, const Placed& args, typename Buffers::Made& made) {
    return read_reduction<Buffers>(kKind, comm.size(), args.needed, args.option, made);
  }
};

// Sets what a call moves. Nothing is the same to all ranks, of whatever type it is to each.
inline Call& moves(Call& call, Kind kind, std::size_t count) {
  call.kind = kind;
  call.count = count;
  if (count == 0) call.dtype = DType::kUInt8;
  return call;
}

// Converts a rank of the communicator. Returns nullopt for all else, which the Python path refuses.
inline std::optional<int> rank_from(PyObject* given, const Communicator& comm) {
  const auto rank = whole_number(given);
  return rank && *rank < static_cast<std::size_t>(comm.size())
             ? std::optional(static_cast<int>(*rank))
             : std::nullopt;
}

struct AllgatherCall {
  static constexpr Kind kKind = Kind::kAllgather;
  static constexpr MethodNames kNames = {{"sendbuf", "recvbuf", nullptr}, 2};
  template <class Buffers>
  static bool read(const Communicator& comm, const Placed& args, typename Buffers::Made& made) {
    Pair<typename Buffers::Array> pair;
    const auto blocks = static_cast<std::size_t>(comm.size());
    if (!read_pair<Buffers>(args.needed, 1, blocks, made, pair)) return false;
    moves(call_on(made, pair.input(), pair.recv), kKind, pair.recv.count);
    return true;
  }
};

struct BcastCall {
  static constexpr Kind kKind = Kind::kBcast;
  static constexpr MethodNames kNames = {{"buf", "root", nullptr}, 1};
  template <class Buffers>
  static bool read(const Communicator& comm, const Placed& args, typename Buffers::Made& made) {
    const auto root = args.option == nullptr ? 0 : rank_from(args.option, comm);
    if (!root) return false;
    const Access access = *root == comm.rank() ? Access::kRead : Access::kWrite;
    typename Buffers::Array data{};
    if (!Buffers::read(args.needed[0], 1, access, made, data)) return false;
    moves(call_on(made, nullptr, data), kKind, data.count).root = *root;
    return true;
  }
};

}  // namespace gradred
