// The values that all layers share: element types and operations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradred {

enum class DType : std::uint8_t {
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
};

// kAvg is a sum divided by the number of ranks at the end (of integers: averages.h). kPremul is a
// sum whose inputs are first multiplied by a factor. Both combine pairwise like kSum. Tags from
// kFirstUserOp on are operations that a program creates from its own functions (user_ops.h).
enum class Op : std::uint8_t {
  kSum,
  kProd,
  kMin,
  kMax,
  kLand,
  kLor,
  kLxor,
  kBand,
  kBor,
  kBxor,
  kAvg,
  kPremul,
};

enum class DTypeKind : std::uint8_t { kSigned, kUnsigned, kBool, kReal, kComplex };
constexpr std::string_view name_of(DTypeKind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"signed", "unsigned", "bool", "real",
                                                      "complex"};
  return kNames[static_cast<std::size_t>(kind)];
}

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // NumPy's or ml_dtypes'
  std::size_t bytes;      // of one element
  DTypeKind kind;
  int digits;   // binary: the type holds all integers up to 2^digits; bool: 0 and 1
  int dlpack;   // DLPack's type code
  bool numpys;  // a NumPy type; else one of the package ml_dtypes
  int xla;      // XLA's number (xla_data.proto)
};

// All properties of an element type except its arithmetic (reduce/kernels/elements.h) and its MPI
// handles (mpi/mpi_families.cc). Python reads this as gradred.element_types.
inline constexpr auto kDTypeInfo = std::to_array<DTypeInfo>({
    {DType::kInt8, "int8", 1, DTypeKind::kSigned, 7, 0, true, 2},
    {DType::kInt16, "int16", 2, DTypeKind::kSigned, 15, 0, true, 3},
    {DType::kInt32, "int32", 4, DTypeKind::kSigned, 31, 0, true, 4},
    {DType::kInt64, "int64", 8, DTypeKind::kSigned, 63, 0, true, 5},
    {DType::kUInt8, "uint8", 1, DTypeKind::kUnsigned, 8, 1, true, 6},
    {DType::kUInt16, "uint16", 2, DTypeKind::kUnsigned, 16, 1, true, 7},
    {DType::kUInt32, "uint32", 4, DTypeKind::kUnsigned, 32, 1, true, 8},
    {DType::kUInt64, "uint64", 8, DTypeKind::kUnsigned, 64, 1, true, 9},
    {DType::kBool, "bool", 1, DTypeKind::kBool, 1, 6, true, 1},
    {DType::kFloat8E4M3FN, "float8_e4m3fn", 1, DTypeKind::kReal, 4, 10, false, 20},
    {DType::kFloat8E5M2, "float8_e5m2", 1, DTypeKind::kReal, 3, 12, false, 19},
    {DType::kFloat16, "float16", 2, DTypeKind::kReal, 11, 2, true, 10},
    {DType::kBFloat16, "bfloat16", 2, DTypeKind::kReal, 8, 4, false, 16},
    {DType::kFloat32, "float32", 4, DTypeKind::kReal, 24, 2, true, 11},
    {DType::kFloat64, "float64", 8, DTypeKind::kReal, 53, 2, true, 12},
    {DType::kComplex64, "complex64", 8, DTypeKind::kComplex, 24, 5, true, 15},
    {DType::kComplex128, "complex128", 16, DTypeKind::kComplex, 53, 5, true, 18},
});
inline constexpr std::size_t kDTypes = kDTypeInfo.size();
static_assert([] {
  for (std::size_t i = 0; i < kDTypes; ++i) {
    if (kDTypeInfo[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}());

struct OpInfo {
  Op op;
  std::string_view name;   // gradred's; MPI's is the same in capitals, if it has one
  std::string_view ufunc;  // NumPy's pairwise function; avg also divides, premul also scales
};

// All properties of an operation except its function (reduce/kernels/operations.h) and its MPI
// handles (mpi/mpi_families.cc). Python reads this as gradred.ops.
inline constexpr auto kOpInfo = std::to_array<OpInfo>({
    {Op::kSum, "sum", "add"},
    {Op::kProd, "prod", "multiply"},
    {Op::kMin, "min", "minimum"},
    {Op::kMax, "max", "maximum"},
    {Op::kLand, "land", "logical_and"},
    {Op::kLor, "lor", "logical_or"},
    {Op::kLxor, "lxor", "logical_xor"},
    {Op::kBand, "band", "bitwise_and"},
    {Op::kBor, "bor", "bitwise_or"},
    {Op::kBxor, "bxor", "bitwise_xor"},
    {Op::kAvg, "avg", "add"},
    {Op::kPremul, "premul", "add"},
});
inline constexpr std::size_t kOps = kOpInfo.size();
// Stands for any user operation when ranks compare calls, since each rank has its own tags for
// them.
inline constexpr Op kAnyUserOp{15};
inline constexpr std::size_t kFirstUserOp = 16;
inline constexpr std::size_t kMostUserOps = 128;
static_assert(kOps <= static_cast<std::size_t>(kAnyUserOp));
static_assert([] {
  for (std::size_t i = 0; i < kOps; ++i) {
    if (kOpInfo[i].op != static_cast<Op>(i)) return false;
  }
  return true;
}());

constexpr std::size_t size_of(DType dtype) {
  return kDTypeInfo[static_cast<std::size_t>(dtype)].bytes;
}
constexpr std::string_view name_of(DType dtype) {
  return kDTypeInfo[static_cast<std::size_t>(dtype)].name;
}

constexpr bool is_logical(Op op) { return op == Op::kLand || op == Op::kLor || op == Op::kLxor; }

constexpr bool is_integer(DType dtype) {
  const DTypeKind kind = kDTypeInfo[static_cast<std::size_t>(dtype)].kind;
  return kind == DTypeKind::kSigned || kind == DTypeKind::kUnsigned;
}

constexpr bool is_users(Op op) { return static_cast<std::size_t>(op) >= kFirstUserOp; }
constexpr Op as_compared(Op op) { return is_users(op) ? kAnyUserOp : op; }
std::string_view user_op_name(Op op);
constexpr std::string_view name_of(Op op) {
  if (op == kAnyUserOp) return "a function of the program's own";
  return is_users(op) ? user_op_name(op) : kOpInfo[static_cast<std::size_t>(op)].name;
}

// Whether each result is 0 or 1, whatever bytes count as true in the inputs.
constexpr bool gives_truth(Op op, DType dtype) {
  return is_logical(op) || (dtype == DType::kBool && !is_users(op));
}

}  // namespace gradred
