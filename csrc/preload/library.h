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

// Makes a new process a rank of gradred, if the MPI runs; `caller` is an address in the program's
// code. Returns whether it is a rank. If gradred cannot begin, it prints why.
bool begin_in(const void* caller) noexcept;
// Whether gradred could not begin in this process, for example because of a wrong setting. The
// ranks agree that the MPI carries out all calls.
bool could_not_begin();

// The bits of a handle that this MPI uses; an argument's other bits have any value.
inline std::atomic<mpi::Handle> handle_mask{~mpi::Handle{0}};

// Mpi::dtype() and Mpi::op(), remembered by each thread.
std::optional<DType> dtype_of(mpi::Handle type);
std::optional<Op> op_of(mpi::Handle op);

}  // namespace gradred::preload
