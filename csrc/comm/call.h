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

// Where the elements that a rank gives begin, and where those that it gets; how many there are is
// the call's kind and count.
struct InBuffer {
  const void* data = kInPlace;  // then they are in the call's OutBuffer
  Memory memory{};
};
struct OutBuffer {
  void* data = nullptr;
  Memory memory{};
};

// In what order a call and other work on its buffers are done, where not all of that was done
// before the call, or is the host's.
struct CallOrder {
  std::shared_ptr<Stream> before{};       // its work comes first; null: there is none
  std::shared_ptr<StreamOrder> stream{};  // of a program's stream; null: the host waits
  std::shared_ptr<Flow> flow{};  // of what a plan takes in pieces (Family::flows); null: none

  // The host waits. Null: the arrays are the host's.
  static std::shared_ptr<const CallOrder> after(const After& work) {
    auto before = work.open_stream();
    if (before == nullptr) return nullptr;
    return std::make_shared<const CallOrder>(CallOrder{.before = std::move(before)});
  }
};

// `count` is MPI's: of the vector (allreduce, bcast), or of one rank's block (reduce_scatter_block,
// allgather).
struct Call {
  Kind kind = Kind::kAllreduce;
  InBuffer in{};
  OutBuffer out{};
  std::shared_ptr<const CallOrder> order{};  // null: nothing comes first, and the host waits
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
  bool in_place() const { return in.data == kInPlace; }
  const void* input() const { return in_place() ? out.data : in.data; }
  Memory input_memory() const { return in_place() ? out.memory : in.memory; }
  bool on_host() const { return in.memory.is_host() && out.memory.is_host(); }
  Stream* before() const { return order ? order->before.get() : nullptr; }
  StreamOrder* stream_order() const { return order ? order->stream.get() : nullptr; }
  // Whether a plan that goes through its vector in pieces may begin before all of the input is
  // there: a factor is put on all of it at once, and other kinds have blocks.
  bool may_flow() const {
    return (kind == Kind::kAllreduce || kind == Kind::kBcast) && op != Op::kPremul;
  }
  Flow* flow() const { return order ? order->flow.get() : nullptr; }
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
