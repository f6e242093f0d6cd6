#include "mpi/mpi_families.h"

#include <array>

#include "base/errors.h"

namespace gradred::mpi {
namespace {

void* pointer(std::intptr_t value) {
  return reinterpret_cast<void*>(value);  // NOLINT: constants are small integers
}

// The tables are searched in order, so the types that programs name most come first.

// For MPICH, Intel MPI, MVAPICH and Cray MPICH: fixed by the MPICH ABI initiative.
constexpr std::array<Named<DType>, 30> kMpichTypes = {{
    {0x4c00080b, DType::kFloat64},    {0x4c00040a, DType::kFloat32},    // DOUBLE, FLOAT
    {0x4c000405, DType::kInt32},      {0x4c000439, DType::kInt32},      // INT, INT32_T
    {0x4c000807, DType::kInt64},      {0x4c000809, DType::kInt64},      // LONG, LONG_LONG
    {0x4c00083a, DType::kInt64},      {0x4c000843, DType::kInt64},      // INT64_T, AINT
    {0x4c000844, DType::kInt64},      {0x4c000845, DType::kInt64},      // OFFSET, COUNT
    {0x4c000840, DType::kComplex64},  {0x4c000834, DType::kComplex64},  // C_FLOAT_, CXX_FLOAT_
    {0x4c001041, DType::kComplex128},                                   // C_DOUBLE_COMPLEX
    {0x4c000118, DType::kInt8},       {0x4c000101, DType::kInt8},       // SIGNED_CHAR, CHAR
    {0x4c000137, DType::kInt8},       {0x4c000102, DType::kUInt8},      // INT8_T, UNSIGNED_CHAR
    {0x4c00013b, DType::kUInt8},      {0x4c00010d, DType::kUInt8},      // UINT8_T, BYTE
    {0x4c000203, DType::kInt16},      {0x4c000238, DType::kInt16},      // SHORT, INT16_T
    {0x4c000204, DType::kUInt16},     {0x4c00023c, DType::kUInt16},     // UNSIGNED_SHORT, UINT16_T
    {0x4c000406, DType::kUInt32},     {0x4c00043d, DType::kUInt32},     // UNSIGNED, UINT32_T
    {0x4c000808, DType::kUInt64},     {0x4c000819, DType::kUInt64},     // UNSIGNED_LONG(_LONG)
    {0x4c00083e, DType::kUInt64},     {0x4c00013f, DType::kBool},       // UINT64_T, C_BOOL
    {0x4c000133, DType::kBool},                                         // CXX_BOOL
}};
// Those that all versions share.
constexpr std::array<Named<DType>, 9> kMpichFortranTypes = {{
    {0x4c00041b, DType::kInt32},
    {0x4c00041c, DType::kFloat32},  // INTEGER, REAL
    {0x4c00081f, DType::kFloat64},
    {0x4c00081e, DType::kComplex64},  // DOUBLE_PRECISION, COMPLEX
    {0x4c001022, DType::kComplex128},
    {0x4c000427, DType::kFloat32},  // DOUBLE_COMPLEX, REAL4
    {0x4c000829, DType::kFloat64},
    {0x4c000828, DType::kComplex64},   // REAL8, COMPLEX8
    {0x4c00102a, DType::kComplex128},  // COMPLEX16
}};
constexpr std::array<Named<Op>, 10> kMpichOps = {{
    {0x58000001, Op::kMax},
    {0x58000002, Op::kMin},
    {0x58000003, Op::kSum},
    {0x58000004, Op::kProd},
    {0x58000005, Op::kLand},
    {0x58000006, Op::kBand},
    {0x58000007, Op::kLor},
    {0x58000008, Op::kBor},
    {0x58000009, Op::kLxor},
    {0x5800000a, Op::kBxor},
}};

Constants mpich_constants() {
  return {.handle_bytes = 4,
          .comm_world = 0x44000000,
          .comm_self = 0x44000001,
          .comm_null = 0x04000000,
          .request_null = 0x2c000000,
          .errors_return = 0x54000001,
          .type_null = 0x0c000000,
          .byte_type = 0x4c00010d,
          .int64_type = 0x4c00083a,
          .uint64_type = 0x4c00083e,
          .band_op = 0x58000006,
          .status_ignore = pointer(1),
          .in_place = pointer(-1),
          .status_source = 8,
          .any_source = -2,
          .any_tag = -1,
          .tag_ub = 0x64400001,
          .undefined = -32766,
          .err_other = 15,
          .thread_multiple = 3};
}

// For the standard ABI of MPI-5.0, chapter 20.
constexpr std::array<Named<DType>, 29> kAbiTypes = {{
    {0x244, DType::kInt8},      {0x243, DType::kInt8},       {0x240, DType::kInt8},
    {0x245, DType::kUInt8},     {0x241, DType::kUInt8},      {0x247, DType::kUInt8},
    {0x208, DType::kInt16},     {0x248, DType::kInt16},      {0x20c, DType::kUInt16},
    {0x249, DType::kUInt16},    {0x209, DType::kInt32},      {0x250, DType::kInt32},
    {0x20d, DType::kUInt32},    {0x251, DType::kUInt32},     {0x20a, DType::kInt64},
    {0x20b, DType::kInt64},     {0x258, DType::kInt64},      {0x201, DType::kInt64},
    {0x202, DType::kInt64},     {0x203, DType::kInt64},      {0x20e, DType::kUInt64},
    {0x20f, DType::kUInt64},    {0x259, DType::kUInt64},     {0x238, DType::kBool},
    {0x210, DType::kFloat32},   {0x214, DType::kFloat64},    {0x212, DType::kComplex64},
    {0x213, DType::kComplex64}, {0x216, DType::kComplex128},
}};
constexpr std::array<Named<DType>, 13> kAbiFortranTypes = {{
    {0x219, DType::kInt32},
    {0x21a, DType::kFloat32},
    {0x21b, DType::kComplex64},
    {0x21c, DType::kFloat64},
    {0x21d, DType::kComplex128},
    {0x2c1, DType::kInt8},
    {0x2c9, DType::kInt16},
    {0x2d1, DType::kInt32},
    {0x2d2, DType::kFloat32},
    {0x2d9, DType::kInt64},
    {0x2da, DType::kFloat64},
    {0x2db, DType::kComplex64},
    {0x2e3, DType::kComplex128},
}};
constexpr std::array<Named<Op>, 10> kAbiOps = {{
    {0x21, Op::kSum},
    {0x22, Op::kMin},
    {0x23, Op::kMax},
    {0x24, Op::kProd},
    {0x28, Op::kBand},
    {0x29, Op::kBor},
    {0x2a, Op::kBxor},
    {0x30, Op::kLand},
    {0x31, Op::kLor},
    {0x32, Op::kLxor},
}};

Constants abi_constants() {
  return {.handle_bytes = sizeof(void*),
          .comm_world = 0x101,
          .comm_self = 0x102,
          .comm_null = 0x100,
          .request_null = 0x180,
          .errors_return = 0x143,
          .type_null = 0x200,
          .byte_type = 0x247,
          .int64_type = 0x258,
          .uint64_type = 0x259,
          .band_op = 0x28,
          .status_ignore = nullptr,
          .in_place = pointer(1),
          .status_source = 0,
          .any_source = -1,
          .any_tag = -2,
          .tag_ub = 501,
          .undefined = -32766,
          .err_other = 16,
          .thread_multiple = 4096};
}

struct Symbol {
  const char* name;
  DType dtype;
};
constexpr std::array<Symbol, 29> kOpenMpiTypes = {{
    {"ompi_mpi_double", DType::kFloat64},
    {"ompi_mpi_float", DType::kFloat32},
    {"ompi_mpi_int", DType::kInt32},
    {"ompi_mpi_int32_t", DType::kInt32},
    {"ompi_mpi_long", DType::kInt64},
    {"ompi_mpi_long_long_int", DType::kInt64},
    {"ompi_mpi_int64_t", DType::kInt64},
    {"ompi_mpi_signed_char", DType::kInt8},
    {"ompi_mpi_char", DType::kInt8},
    {"ompi_mpi_int8_t", DType::kInt8},
    {"ompi_mpi_unsigned_char", DType::kUInt8},
    {"ompi_mpi_uint8_t", DType::kUInt8},
    {"ompi_mpi_byte", DType::kUInt8},
    {"ompi_mpi_short", DType::kInt16},
    {"ompi_mpi_int16_t", DType::kInt16},
    {"ompi_mpi_unsigned_short", DType::kUInt16},
    {"ompi_mpi_uint16_t", DType::kUInt16},
    {"ompi_mpi_unsigned", DType::kUInt32},
    {"ompi_mpi_uint32_t", DType::kUInt32},
    {"ompi_mpi_aint", DType::kInt64},
    {"ompi_mpi_count", DType::kInt64},
    {"ompi_mpi_offset", DType::kInt64},
    {"ompi_mpi_unsigned_long", DType::kUInt64},
    {"ompi_mpi_unsigned_long_long", DType::kUInt64},
    {"ompi_mpi_uint64_t", DType::kUInt64},
    {"ompi_mpi_c_bool", DType::kBool},
    {"ompi_mpi_c_float_complex", DType::kComplex64},
    {"ompi_mpi_cxx_cplex", DType::kComplex64},
    {"ompi_mpi_c_double_complex", DType::kComplex128},
}};
constexpr std::array<Symbol, 13> kOpenMpiFortranTypes = {{
    {"ompi_mpi_integer", DType::kInt32},
    {"ompi_mpi_real", DType::kFloat32},
    {"ompi_mpi_dblprec", DType::kFloat64},
    {"ompi_mpi_cplex", DType::kComplex64},
    {"ompi_mpi_dblcplex", DType::kComplex128},
    {"ompi_mpi_integer1", DType::kInt8},
    {"ompi_mpi_integer2", DType::kInt16},
    {"ompi_mpi_integer4", DType::kInt32},
    {"ompi_mpi_integer8", DType::kInt64},
    {"ompi_mpi_real4", DType::kFloat32},
    {"ompi_mpi_real8", DType::kFloat64},
    {"ompi_mpi_complex8", DType::kComplex64},
    {"ompi_mpi_complex16", DType::kComplex128},
}};
constexpr std::array<std::pair<const char*, Op>, 10> kOpenMpiOps = {{
    {"ompi_mpi_op_sum", Op::kSum},
    {"ompi_mpi_op_prod", Op::kProd},
    {"ompi_mpi_op_min", Op::kMin},
    {"ompi_mpi_op_max", Op::kMax},
    {"ompi_mpi_op_land", Op::kLand},
    {"ompi_mpi_op_lor", Op::kLor},
    {"ompi_mpi_op_lxor", Op::kLxor},
    {"ompi_mpi_op_band", Op::kBand},
    {"ompi_mpi_op_bor", Op::kBor},
    {"ompi_mpi_op_bxor", Op::kBxor},
}};

FamilyTables open_mpi_tables(void* library, Lookup lookup) {
  const auto at = [&](const char* symbol) {
    void* found = lookup(library, symbol);
    if (found == nullptr) throw TransportError(std::string("Open MPI lacks the symbol ") + symbol);
    return reinterpret_cast<Handle>(found);
  };
  static std::array<Named<DType>, kOpenMpiTypes.size()> types;
  static std::array<Named<DType>, kOpenMpiFortranTypes.size()> fortran_types;
  static std::array<Named<Op>, kOpenMpiOps.size()> ops;
  for (std::size_t i = 0; i < types.size(); ++i) {
    types[i] = {at(kOpenMpiTypes[i].name), kOpenMpiTypes[i].dtype};
  }
  for (std::size_t i = 0; i < fortran_types.size(); ++i) {
    fortran_types[i] = {at(kOpenMpiFortranTypes[i].name), kOpenMpiFortranTypes[i].dtype};
  }
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops[i] = {at(kOpenMpiOps[i].first), kOpenMpiOps[i].second};
  }
  const Constants constants = {.handle_bytes = sizeof(void*),
                               .comm_world = at("ompi_mpi_comm_world"),
                               .comm_self = at("ompi_mpi_comm_self"),
                               .comm_null = at("ompi_mpi_comm_null"),
                               .request_null = at("ompi_request_null"),
                               .errors_return = at("ompi_mpi_errors_return"),
                               .type_null = at("ompi_mpi_datatype_null"),
                               .byte_type = at("ompi_mpi_byte"),
                               .int64_type = at("ompi_mpi_int64_t"),
                               .uint64_type = at("ompi_mpi_uint64_t"),
                               .band_op = at("ompi_mpi_op_band"),
                               .status_ignore = nullptr,
                               .in_place = pointer(1),
                               .status_source = 0,
                               .any_source = -1,
                               .any_tag = -1,
                               .tag_ub = 0,
                               .undefined = -32766,
                               .err_other = 16,
                               .thread_multiple = 3};
  return {constants, types, ops, fortran_types};
}

}  // namespace

std::string_view name_of(Family family) {
  constexpr std::array<std::string_view, 3> kNames = {"MPICH", "Open MPI", "standard ABI"};
  return kNames[static_cast<std::size_t>(family)];
}

Family find_family(void* library, Lookup lookup) {
  if (lookup(library, "ompi_mpi_comm_world") != nullptr) return Family::kOpenMpi;
  // MPICH 5 has this function in its own ABI as well, and there reports that it is not the standard
  // ABI.
  void* found = lookup(library, "MPI_Abi_get_version");
  if (found != nullptr) {
    int major = -1, minor = -1;
    reinterpret_cast<int (*)(int*, int*)>(found)(&major, &minor);
    if (major >= 1) return Family::kStandardAbi;
  }
  return Family::kMpich;
}

FamilyTables tables_of(Family family, void* library, Lookup lookup) {
  if (family == Family::kOpenMpi) return open_mpi_tables(library, lookup);
  if (family == Family::kMpich) {
    return {mpich_constants(), kMpichTypes, kMpichOps, kMpichFortranTypes};
  }
  return {abi_constants(), kAbiTypes, kAbiOps, kAbiFortranTypes};
}

}  // namespace gradred::mpi
