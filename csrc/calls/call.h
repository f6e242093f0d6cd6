// One collective call as the caller made it, and the hook that the caller runs while it waits.
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

// Where the input of a rank begins, and where its result goes. The kind and the count of the call
// determine how many elements there are.
struct InBuffer {
  const void* data = kInPlace;  // kInPlace: the input is in the call's OutBuffer
  Memory memory{};
};
struct OutBuffer {
  void* data = nullptr;
  Memory memory{};
};

// The order between a call and other work on its buffers. It is needed if that work was not all
// done before the call, or is not all done by the host.
struct CallOrder {
  std::shared_ptr<Stream> before{};       // its work comes before the call; nullptr: none
  std::shared_ptr<StreamOrder> stream{};  // of a stream of the program; nullptr: the host waits
  // For plans that take data in pieces (ArrayAccess::kPieces); nullptr: none.
  std::shared_ptr<Flow> flow{};
  // Set once the device has been given all work of the call, where that is possible before the
  // peers' work is done; nullptr if nothing asks for it.
  std::shared_ptr<EndEvent> given{};

  // For a call that the host waits for. Returns nullptr if the arrays are in host memory.
  static std::shared_ptr<const CallOrder> after(const After& work) {
    auto before = work.open_stream();
    if (before == nullptr) return nullptr;
    return std::make_shared<const CallOrder>(CallOrder{.before = std::move(before)});
  }
};

// `count` is MPI's: elements of the vector, or of one rank's block if has_blocks(kind).
struct Call {
  Kind kind = Kind::kAllreduce;
  InBuffer in{};
  OutBuffer out{};
  std::shared_ptr<const CallOrder> order{};  // nullptr: no work comes first, and the host waits
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;
  double factor = 1.0;       // kPremul only
  int root = 0;              // if has_root(kind)
  std::uint64_t layout = 0;  // hash of what else the ranks must agree on; 0: plain buffers
  // kAlltoall: elements from rank to rank, size * size values, the same on all ranks. The caller
  // keeps them alive as long as the call. `count` is then the largest number that a rank sends.
  const std::size_t* splits = nullptr;
  Wire wire = Wire::kNone;  // the form in which data may cross between hosts
  bool waited = false;      // the calling thread waits, and no other thread learns of it
  bool persistent = false;  // started more than once
  bool mpi_request = true;  // if started: the program may wait with the MPI's own functions
  // Name of a plan. "": the selector chooses; nullptr: the settings choose.
  const char* plan = nullptr;
  std::shared_ptr<const Schedule> schedule{};  // the caller's own schedule
  std::uint64_t path = 0;                // hash of the plan, if ranks could choose different ones
  std::optional<Signature> agreement{};  // no data move: the ranks only compare this
  // Set if this is the sum of the words of integers of this type, for their mean (averages.h). The
  // ranks compare the mean.
  std::optional<DType> mean_of{};

  // A mean that is carried out as a sum of words.
  bool averages_integers() const { return op == Op::kAvg && is_integer(dtype); }
  Signature signature() const;
  bool in_place() const { return in.data == kInPlace; }
  const void* input() const { return in_place() ? out.data : in.data; }
  Memory input_memory() const { return in_place() ? out.memory : in.memory; }
  bool on_host() const { return in.memory.is_host() && out.memory.is_host(); }
  Stream* before() const { return order ? order->before.get() : nullptr; }
  StreamOrder* stream_order() const { return order ? order->stream.get() : nullptr; }
  // Whether a plan that works in pieces may begin before all of the input is there. It may not if a
  // factor is applied, which is done to all of the input at once, nor for other kinds, which have
  // blocks.
  bool may_flow() const { return can_be_cut(kind) && op != Op::kPremul; }
  Flow* flow() const { return order ? order->flow.get() : nullptr; }
};

// Throws UsageError if the type lacks the operation, the root is not a rank or not that of the
// caller's own schedule, or a buffer has no address.
void validate(const Call& call, int rank, int size);

// Calls that move more bytes than this take more than microseconds.
inline constexpr std::size_t kLongWorkBytes = std::size_t{32} << 10;

// Called again and again while a call waits. Here the caller may release a lock, look for signals,
// or leave by throwing. `waiting` must be cheap: the first calls come within the first microsecond.
class WaitHook {
 public:
  virtual ~WaitHook() = default;
  virtual void waiting() = 0;
  virtual void long_work() = 0;  // called once, before work that takes more than microseconds
};

}  // namespace gradred
