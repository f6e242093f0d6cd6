// Calls that gradred carries out, or the MPI below this library. `caller` is an address in the
// program's code.
#pragma once

#include <cstdint>
#include <type_traits>

#include "preload/below.h"
#include "preload/calls_of_program.h"

namespace gradred::preload {

using mpi::Handle;
using Count = std::int64_t;  // MPI_Count

template <class Number>
using Reduce = int(const void*, void*, Number, Handle, Handle, Handle);
template <class Number>
using StartReduce = int(const void*, void*, Number, Handle, Handle, Handle, Handle*);
template <class Number>
using Bcast = int(void*, Number, Handle, int, Handle);
template <class Number>
using Allgather = int(const void*, Number, Handle, void*, Number, Handle, Handle);

// A function of the MPI, for counts of either length.
template <template <class> class Form>
struct Function {
  consteval Function(Kind called, const char* name, const char* name_of_large)
      : kind(called), usual(name), large(name_of_large) {}

  const Kind kind;

  template <class... Arguments>
  int operator()(const void* caller, Arguments... arguments) {
    if constexpr (!(std::is_same_v<Arguments, Count> || ...)) {
      return usual(caller, arguments...);
    } else {
      // Open MPI 5 has none for MPI_Count, and programs find ours: then the usual one does what it
      // can.
      if (large.exists(caller) || !(fits(arguments) && ...)) return large(caller, arguments...);
      return usual(caller, in_usual(arguments)...);
    }
  }

 private:
  template <class Argument>
  static auto in_usual(Argument argument) {
    if constexpr (std::is_same_v<Argument, Count>) {
      return static_cast<int>(argument);
    } else {
      return argument;
    }
  }
  template <class Argument>
  static bool fits(Argument argument) {
    return in_usual(argument) == argument;
  }

  Below<Form<int>> usual;
  Below<Form<Count>> large;
};

inline constinit Function<Reduce> allreduce{Kind::kAllreduce, "MPI_Allreduce", "MPI_Allreduce_c"};
inline constinit Function<Reduce> blocks{Kind::kReduceScatterBlock, "MPI_Reduce_scatter_block",
                                         "MPI_Reduce_scatter_block_c"};
inline constinit Function<Reduce> prefix{Kind::kScan, "MPI_Scan", "MPI_Scan_c"};
inline constinit Function<Reduce> prefix_before{Kind::kExscan, "MPI_Exscan", "MPI_Exscan_c"};
inline constinit Function<StartReduce> start_allreduce{Kind::kAllreduce, "MPI_Iallreduce",
                                                       "MPI_Iallreduce_c"};
inline constinit Function<StartReduce> start_blocks{
    Kind::kReduceScatterBlock, "MPI_Ireduce_scatter_block", "MPI_Ireduce_scatter_block_c"};
inline constinit Function<StartReduce> start_prefix{Kind::kScan, "MPI_Iscan", "MPI_Iscan_c"};
inline constinit Function<StartReduce> start_prefix_before{Kind::kExscan, "MPI_Iexscan",
                                                           "MPI_Iexscan_c"};
inline constinit Function<Bcast> bcast{Kind::kBcast, "MPI_Bcast", "MPI_Bcast_c"};
inline constinit Function<Allgather> allgather{Kind::kAllgather, "MPI_Allgather",
                                               "MPI_Allgather_c"};

template <class Number>
int reduce_or_below(const void* caller, Function<Reduce>& below, const void* send, void* recv,
                    Number count, Handle type, Handle op, Handle comm) {
  const auto done = reduce(program_comm(comm, caller), {below.kind, send, recv, count, type, op});
  return done ? *done : below(caller, send, recv, count, type, op, comm);
}

template <class Number>
int start_or_below(const void* caller, Function<StartReduce>& below, const void* send, void* recv,
                   Number count, Handle type, Handle op, Handle comm, Handle* request) {
  const auto done = start_reduction(program_comm(comm, caller),
                                    {below.kind, send, recv, count, type, op}, request);
  return done ? *done : below(caller, send, recv, count, type, op, comm, request);
}

template <class Number>
int bcast_or_below(const void* caller, Function<Bcast>& below, void* data, Number count,
                   Handle type, int root, Handle comm) {
  const auto done = broadcast(program_comm(comm, caller), {data, count, type, root});
  return done ? *done : below(caller, data, count, type, root, comm);
}

template <class Number>
int allgather_or_below(const void* caller, Function<Allgather>& below, const void* send,
                       Number send_count, Handle send_type, void* recv, Number recv_count,
                       Handle recv_type, Handle comm) {
  const auto done = gather(program_comm(comm, caller),
                           {send, send_count, send_type, recv, recv_count, recv_type});
  return done ? *done
              : below(caller, send, send_count, send_type, recv, recv_count, recv_type, comm);
}

}  // namespace gradred::preload
