#include "calls/mpi_handles.h"

#include <array>
#include <mutex>
#include <string>
#include <utility>

#include "base/errors.h"
#include "reduce/reduce.h"

namespace gradred {
namespace {

// The MPI reduces with gradred's own functions, as all other plans do.
//
// The MPI does not tell a function what it was made for. So there is one function for each pair of
// an operation and a type that has been used, and its index finds the pair.
constexpr std::size_t kMostPairs = 256;

struct Pair {
  Op op;
  DType dtype;
  const ReduceFunctions* functions;
  mpi::Handle made;  // never freed: the MPI may use it
};
std::array<Pair, kMostPairs> pairs;  // complete before the MPI knows its function
std::size_t pairs_made = 0;
std::mutex pairs_mutex;  // for adding to them

template <std::size_t place>
void combine(void* in, void* in_out, int* count, mpi::Handle*) {
  pairs[place].functions->pair(in_out, in, in_out, static_cast<std::size_t>(*count));
}

template <std::size_t... places>
constexpr auto combine_functions(std::index_sequence<places...>) {
  return std::array{&combine<places>...};
}

mpi::Handle own_operation(Op op, DType dtype) {
  static constexpr auto functions = combine_functions(std::make_index_sequence<kMostPairs>());
  const std::lock_guard lock(pairs_mutex);
  for (std::size_t i = 0; i < pairs_made; ++i) {
    if (pairs[i].op == op && pairs[i].dtype == dtype) return pairs[i].made;
  }
  if (pairs_made == kMostPairs) {
    throw UsageError("this process has reduced by " + std::to_string(kMostPairs) +
                     " pairs of operations and element types over the MPI, and there is no room "
                     "for more. Make fewer operations of functions");
  }
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle own = 0;
  pairs[pairs_made] = {op, dtype, find_reduction(op, dtype), 0};
  mpi.check(mpi.call.Op_create(functions[pairs_made], 1, &own), "MPI_Op_create");
  pairs[pairs_made].made = mpi.normalise(own);
  return pairs[pairs_made++].made;
}

// The type that carries elements which the MPI does not know, or not with this operation. Both have
// the same size.
DType carrier_of(DType dtype) {
  if (mpi::get().handle_of(dtype)) return dtype;
  return size_of(dtype) == 1 ? DType::kUInt8 : DType::kUInt16;
}

}  // namespace

// False for 8-bit integers, whose sums some MPIs limit to the range of the type. False for bool, of
// which Open MPI hands bytes on that are neither 0 nor 1. False for floats of up to 16 bits, which
// each MPI rounds differently, and for the minimum and maximum of other floats: where one input is
// NaN, or zeros differ in sign, MPICH's ranks get different results.
bool mpi_computes_alike(Op op, DType dtype) {
  const DTypeInfo& type = kDTypeInfo[static_cast<std::size_t>(dtype)];
  if (type.kind == DTypeKind::kBool) return false;
  if (type.kind != DTypeKind::kReal) return type.bytes > 1;
  return type.bytes > 2 && op != Op::kMin && op != Op::kMax;
}

std::optional<MpiHandles> mpi_handles(Op op, DType dtype) {
  if (!mpi_computes_alike(op, dtype)) return std::nullopt;
  const auto type = mpi::get().handle_of(dtype);
  const auto its_op = mpi::get().handle_of(op);
  if (!type || !its_op) return std::nullopt;
  return MpiHandles{*type, *its_op};
}

MpiHandles mpi_or_own_handles(Op op, DType dtype) {
  if (const auto known = mpi_handles(op, dtype)) return *known;
  return {*mpi::get().handle_of(carrier_of(dtype)), own_operation(op, dtype)};
}

}  // namespace gradred
