// The MPI of the program that this library was loaded into, and this process as one of its ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/types.h"
#include "mpi/mpi.h"

namespace gradred::preload {

// Functions of the MPI that only this library uses.
struct MoreFunctions {
  int (*Comm_call_errhandler)(mpi::Handle comm, int code);
  int (*Add_error_class)(int* code);
  int (*Add_error_string)(int code, const char* text);
  int (*Type_size)(mpi::Handle type, int* bytes);
  int (*Type_get_extent)(mpi::Handle type, std::intptr_t* lower, std::intptr_t* extent);
  int (*Pack)(const void* data, int count, mpi::Handle type, void* packed, int bytes, int* position,
              mpi::Handle comm);
  int (*Unpack)(const void* packed, int bytes, int* position, void* data, int count,
                mpi::Handle type, mpi::Handle comm);
};
const MoreFunctions& more();  // after begin_in()

// What this process is. Forked children and programs that have called MPI_Finalize leave all calls
// to the MPI.
enum class Process : std::uint8_t { kNew, kRank, kNoRank };
inline std::atomic<Process> process{Process::kNew};

// Finds the MPI, if it runs, and begins gradred in this process; in Python only can_serve() begins.
// `caller` is an address in the program's code. Returns whether the process is a rank.
bool begin_in(const void* caller) noexcept;
// MPI_Finalize: ends gradred in this process.
int finalize_in(const void* caller) noexcept;
// Whether gradred could begin in this process, and has not been imported in Python. Ranks ask each
// other for that. If gradred cannot begin, for example because of a wrong setting, it prints why.
bool can_serve() noexcept;
bool core_has_begun();

// The bits of a handle that this MPI uses; an argument's other bits have any value.
inline std::atomic<mpi::Handle> handle_mask{~mpi::Handle{0}};

// Mpi::dtype(), Mpi::fortran_dtype() and Mpi::op(), remembered by each thread.
std::optional<DType> dtype_of(mpi::Handle type);
std::optional<Op> op_of(mpi::Handle op);

}  // namespace gradred::preload
