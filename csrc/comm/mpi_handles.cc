#include "comm/mpi_handles.h"

#include <array>
#include <mutex>
#include <utility>

#include "reduce/reduce.h"

namespace gradred {
namespace {

// The same functions as on every other path.
template <std::size_t op, std::size_t dtype>
void combine(void* in, void* in_out, int* count, mpi::Handle*) {
  const ReduceFunctions* functions = find_reduction(static_cast<Op>(op), static_cast<DType>(dtype));
  functions->pair(in_out, in, in_out, static_cast<std::size_t>(*count));
}

template <std::size_t... pairs>
constexpr auto combine_functions(std::index_sequence<pairs...>) {
  return std::array{&combine<pairs / kDTypes, pairs % kDTypes>...};
}

// What travels in place of elements that the MPI does not know, or not with this operation.
DType integer_of_size(std::size_t bytes) { return bytes == 1 ? DType::kUInt8 : DType::kUInt16; }

}  // namespace

std::optional<MpiHandles> mpi_handles(Op op, DType dtype) {
  const mpi::Mpi& mpi = mpi::get();
  const bool logic = op == Op::kLand || op == Op::kLor || op == Op::kLxor;
  if (dtype == DType::kBool && !logic) return std::nullopt;
  const auto type = mpi.handle_of(dtype);
  const auto its_op = mpi.handle_of(op);
  if (!type || !its_op) return std::nullopt;
  return MpiHandles{*type, *its_op};
}

// Not 8-bit integers, whose sums some MPIs limit to the range of the type; not short floats, which
// each rounds in its own way; nor the least and the largest of other floats, where it is NaN and
// signed zeros.
bool mpi_computes_alike(Op op, DType dtype) {
  const DTypeInfo& type = kDTypeInfo[static_cast<std::size_t>(dtype)];
  if (type.kind == DTypeKind::kBool) return true;
  if (type.kind != DTypeKind::kReal) return type.bytes > 1;
  return type.bytes > 2 && op != Op::kMin && op != Op::kMax;
}

MpiHandles mpi_or_own_handles(Op op, DType dtype) {
  static constexpr auto functions = combine_functions(std::make_index_sequence<kOps * kDTypes>());
  static std::mutex mutex;
  static std::array<mpi::Handle, functions.size()> made{};  // never freed: the MPI may use them
  if (const auto known = mpi_handles(op, dtype)) return *known;
  const mpi::Mpi& mpi = mpi::get();
  const std::size_t index =
      static_cast<std::size_t>(op) * kDTypes + static_cast<std::size_t>(dtype);
  const std::lock_guard lock(mutex);
  if (made[index] == 0) {
    mpi::Handle own = 0;
    mpi.check(mpi.call.Op_create(functions[index], 1, &own), "MPI_Op_create");
    made[index] = mpi.normalise(own);
  }
  return {*mpi.handle_of(integer_of_size(size_of(dtype))), made[index]};
}

}  // namespace gradred
