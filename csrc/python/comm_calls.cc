#include "python/comm_calls.h"

namespace gradred {

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

bool place_named(const MethodNames& known, Arguments args, Py_ssize_t nargs, PyObject* names,
                 ByName& placed) {
  placed = {};
  std::copy_n(args, nargs, placed.begin());
  const std::size_t count = known.count();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names, i);
    std::size_t place = 0;
    while (place < count && PyUnicode_CompareWithASCIIString(name, known.names[place]) != 0) {
      ++place;
    }
    if (place == count || placed[place] != nullptr) return false;
    placed[place] = args[nargs + i];
  }
  return std::count(placed.begin(), placed.begin() + known.needed, nullptr) == 0;
}

std::optional<Op> asked_op(PyObject* op) {
  if (op == nullptr) return Op::kSum;
  if (!PyUnicode_Check(op)) return op_of(op);
  for (const OpInfo& info : kOpInfo) {
    const bool is_it = PyUnicode_CompareWithASCIIString(op, info.name.data()) == 0;
    if (is_it && info.op != Op::kPremul) return info.op;  // premul needs a factor
  }
  return std::nullopt;
}

bool plain_reduction(Kind kind, int size, Arguments buffers, PyObject* op, AnyCall& made) {
  return read_reduction<Anywhere>(kind, size, buffers, op, made);
}

}  // namespace gradred
