// How kernels in other shared objects, such as those of TensorFlow's graphs, submit named
// operations: a table of functions that take C's types alone. The other object is not linked with
// the core, and may be compiled with another C++ library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gradred {

class NamedOperations;

struct KernelArray {
  const void* in;
  void* out;           // the same address as `in`: in place; nullptr: memory is allocated for it
  std::int32_t dtype;  // a DType
  std::int32_t axes;   // the number of lengths in `shape`
  const std::int64_t* shape;
};

// What a kernel submits. The texts, the arrays' descriptions and the splits are read during
// submit() alone; the arrays' memory stays valid until `done` is called, and longer after an error
// with which `holds_memory` is set.
struct KernelCall {
  std::int32_t process_set;  // its number, under which serve_kernels() knows its operations
  const char* kind;          // "allreduce"
  // Empty: named by the number of such calls of this set, so that all ranks have to make them in
  // one order.
  const char* name;
  std::int32_t op;  // an Op
  double prescale, postscale;
  std::int32_t root;  // a rank of the set
  // Describes the nest whose leaves the arrays are, for the ranks to compare. Empty: no nest.
  const char* structure;
  const char* wire;  // what float32 travels in between hosts, "" or a name as in reduce/wire.h
  const KernelArray* arrays;
  std::size_t count;  // of the arrays
  const std::int64_t* splits;
  std::size_t split_count;
};

enum class KernelEnd : std::int32_t {
  kWell,
  kNotServed,  // the process set has no operations: init() has not been called
  kRefused,    // this rank's arguments are wrong
  kDisagreed,  // the ranks' calls differ
  kLost,       // a rank's process has ended, or the network has failed
  kFailed,     // another error: a rank has left
};

// How a call has ended; valid while `done` runs.
struct KernelResult {
  KernelEnd end;
  const char* text;          // of the error
  bool holds_memory;         // the MPI may still write to the arrays: never free them
  std::int32_t rank, ranks;  // this rank in the set, and the set's size
  // For each array without `out`: its result. nullptr without such arrays.
  const void* const* outputs;
  const std::size_t* output_bytes;
  // For allgather, alltoall and reducescatter: number of rows by array and rank, as
  // NamedOperation::rows has them. nullptr for other kinds.
  const std::int64_t* const* rows;
};

using KernelDone = void (*)(void* context, const KernelResult* result);

struct KernelCalls {
  static constexpr std::uint32_t kVersion = 4;

  std::uint32_t version;
  // Submits a call, and calls `done` once: before it returns if `waits`, else in another thread if
  // possible. Throws nothing.
  void (*submit)(const KernelCall* call, bool waits, KernelDone done, void* context);
};

const KernelCalls& kernel_calls();
// From now on kernels that name this process set submit to `operations`; nullptr: to nothing.
void serve_kernels(int process_set, std::shared_ptr<NamedOperations> operations);

}  // namespace gradred
