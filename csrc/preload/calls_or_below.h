// Calls that gradred carries out, or the MPI below this library. `caller` is an address in the
// program's code.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <string_view>
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

// The kind of call of "MPI_Allreduce" and its like, or of "MPI_Iallreduce".
consteval Kind kind_of(std::string_view function) {
  const auto is = [function](std::string_view kind, std::size_t prefix) {
    const auto lower = [](char letter) {
      return letter >= 'A' && letter <= 'Z' ? letter + 32 : letter;
    };
    return std::ranges::equal(function.substr(prefix), kind, {}, lower);
  };
  for (std::size_t i = 0; i < kCalledKinds; ++i) {
    if (is(kKinds[i].name, 4) || is(kKinds[i].name, 5)) return static_cast<Kind>(i);
  }
  throw "no kind of call has this name";
}

// A function of the MPI, for counts of either length. Open MPI 5 has none for MPI_Count, and
// programs find ours: then the usual one does what it can.
template <template <class> class Form>
struct Function {
  consteval Function(const char* name, const char* name_of_large)
      : kind(kind_of(name)), usual(name), large(name_of_large) {}

  const Kind kind;
  Below<Form<int>> usual;
  Below<Form<Count>> large;

  template <class Number>
  bool has(const void* caller) {
    return std::is_same_v<Number, int> || large.exists(caller);
  }
  template <class Number>
  auto& of() {
    if constexpr (std::is_same_v<Number, int>) {
      return usual;
    } else {
      return large;
    }
  }
};

inline bool is_short(Count count) { return count <= INT_MAX; }

template <class Number>
int reduce_or_below(const void* caller, Function<Reduce>& below, const void* send, void* recv,
                    Number count, Handle type, Handle op, Handle comm) {
  const auto done = reduce(program_comm(comm, caller), {below.kind, send, recv, count, type, op});
  if (done) return *done;
  if (!below.template has<Number>(caller) && is_short(count)) {
    return below.usual(caller, send, recv, static_cast<int>(count), type, op, comm);
  }
  return below.template of<Number>()(caller, send, recv, count, type, op, comm);
}

template <class Number>
int start_or_below(const void* caller, Function<StartReduce>& below, const void* send, void* recv,
                   Number count, Handle type, Handle op, Handle comm, Handle* request) {
  const auto done = start_reduction(program_comm(comm, caller),
                                    {below.kind, send, recv, count, type, op}, request);
  if (done) return *done;
  if (!below.template has<Number>(caller) && is_short(count)) {
    return below.usual(caller, send, recv, static_cast<int>(count), type, op, comm, request);
  }
  return below.template of<Number>()(caller, send, recv, count, type, op, comm, request);
}

template <class Number>
int bcast_or_below(const void* caller, Function<Bcast>& below, void* data, Number count,
                   Handle type, int root, Handle comm) {
  const auto done = broadcast(program_comm(comm, caller), {data, count, type, root});
  if (done) return *done;
  if (!below.template has<Number>(caller) && is_short(count)) {
    return below.usual(caller, data, static_cast<int>(count), type, root, comm);
  }
  return below.template of<Number>()(caller, data, count, type, root, comm);
}

template <class Number>
int allgather_or_below(const void* caller, Function<Allgather>& below, const void* send,
                       Number send_count, Handle send_type, void* recv, Number recv_count,
                       Handle recv_type, Handle comm) {
  const auto done = gather(program_comm(comm, caller),
                           {send, send_count, send_type, recv, recv_count, recv_type});
  if (done) return *done;
  if (!below.template has<Number>(caller) && is_short(send_count) && is_short(recv_count)) {
    return below.usual(caller, send, static_cast<int>(send_count), send_type, recv,
                       static_cast<int>(recv_count), recv_type, comm);
  }
  return below.template of<Number>()(caller, send, send_count, send_type, recv, recv_count,
                                     recv_type, comm);
}

}  // namespace gradred::preload
