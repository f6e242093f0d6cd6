// One collective call as the caller made it, and what a caller does while it waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/flow.h"
#include "base/in_place.h"
#include "base/signature.h"
#include "base/types.h"
#include "memory/memory.h"
#include "schedule/schedule.h"

namespace gradred {

// Of a call whose arrays are not all in host memory, or not all there yet.
struct Elsewhere {
  Memory input{};                        // where that is not in recv
  Memory result{};                       // of recv
  std::shared_ptr<Stream> before{};      // its work on them comes first; null: there is none
  std::shared_ptr<StreamOrder> order{};  // of a program's stream; null: the host's, who waits
  std::shared_ptr<Flow> flow{};  // of what a plan takes in order (Family::flows); null: none

  // In whose memory they are; null: they have no elements.
  DeviceMemory* device() const { return input.is_host() ? result.device() : input.device(); }
};

// `count` is MPI's: of the vector (allreduce, bcast), or of one rank's block (reduce_scatter_block,
// allgather).
struct Call {
  Kind kind = Kind::kAllreduce;
  const void* send = kInPlace;  // or where the input is
  void* recv = nullptr;
  std::shared_ptr<const Elsewhere> elsewhere{};  // null: in host memory, and nothing comes first
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;
  double factor = 1.0;       // kPremul only
  int root = 0;              // kBcast only
  std::uint64_t layout = 0;  // hash of what else ranks must agree on; 0 for plain buffers
  // kAlltoall: elements from rank to rank, size * size; agreed, and alive as long as the call. Then
  // `count` is the most that a rank gives.
  const std::size_t* splits = nullptr;
  bool waited = false;      // who makes it waits for it, and tells nobody else of it
  bool persistent = false;  // started more than once
  bool mpi_request = true;  // if started: the program may wait by the MPI's own functions
  // By name; "": the selector's choice; null: what the settings ask for.
  const char* plan = nullptr;
  std::shared_ptr<const Schedule> schedule{};  // a schedule of the caller's own
  std::uint64_t path = 0;                // hash of the plan, where ranks could take different ones
  std::optional<Signature> agreement{};  // nothing moves: the ranks only compare this

  Signature signature() const;
  bool on_host() const {
    return elsewhere == nullptr || (elsewhere->input.is_host() && elsewhere->result.is_host());
  }
  Memory result_memory() const { return elsewhere ? elsewhere->result : Memory(); }
  Memory input_memory() const {
    return elsewhere && send != kInPlace ? elsewhere->input : result_memory();
  }
  Stream* before() const { return elsewhere ? elsewhere->before.get() : nullptr; }
  StreamOrder* order() const { return elsewhere ? elsewhere->order.get() : nullptr; }
  // Whether a plan that goes through its vector in pieces may begin before all of the input is
  // there: a factor is put on all of it at once, and other kinds have blocks.
  bool may_flow() const {
    return (kind == Kind::kAllreduce || kind == Kind::kBcast) && op != Op::kPremul;
  }
  Flow* flow() const { return elsewhere ? elsewhere->flow.get() : nullptr; }
};

// Called again and again while a call waits: the place to release a lock, look for signals, or
// leave by throwing. `waiting` must be cheap; the first calls come within the first microsecond.
class WaitHook {
 public:
  virtual ~WaitHook() = default;
  virtual void waiting() = 0;
  virtual void long_work() = 0;  // once, before work that takes more than microseconds
};

}  // namespace gradred
