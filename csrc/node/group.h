// The ranks of one host: collective operations through shared memory, free of MPI.
//
// Each operation has a number and begins with an announcement (layout.h): the number, the signature
// and, if they fit, the data. No rank touches user memory with peers' data before it has seen that
// all announcements agree.
//
// Why two announcements and two slots per rank, used in turn, are enough: a rank leaves operation k
// only after it has seen all announcements of k (after abort() it catches up on that before it
// announces again). So when a rank announces k + 2, it has left k + 1, hence every peer has
// announced k + 1, hence has left k and reads nothing of k any more. For the same reason a peer's
// announcement in place k % 2 is that of k or of k - 2, never of k + 2, and 32 bits of the number
// are enough to tell them apart.
//
// A rank's arrival time lies beside its announcement and follows the same rule: peers read it after
// they have left k and before they announce k + 1, and it is written when k + 2 is announced.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/failure.h"
#include "base/in_place.h"
#include "base/signature.h"
#include "node/bootstrap.h"
#include "node/layout.h"
#include "node/process.h"
#include "node/segment.h"
#include "node/wait.h"
#include "reduce/reduce.h"

namespace gradred {

namespace testing {
struct ManyOperations;  // lets a test go on as after any number of them
}

struct AllreduceArgs {
  const void* send = kInPlace;  // or the input, which does not overlap recv
  void* recv = nullptr;
  std::size_t count = 0;
  std::size_t element = 0;  // bytes
  const ReduceFunctions* reduce = nullptr;
  Signature signature;
  Poll* poll = nullptr;  // nullptr: nothing to do while waiting
};

// reduce_scatter_block: send holds size * count elements, recv count of them; in place the first
// count of recv, which then holds size * count. allgather: send count, recv size * count; in place
// this rank's part of recv is the input.
using BlockArgs = AllreduceArgs;

struct BcastArgs {
  void* data = nullptr;
  std::size_t bytes = 0;
  int root = 0;
  Signature signature;
  Poll* poll = nullptr;
};

// This rank's contribution to an operation whose buffers have the same shape.
inline const std::byte* input_of(const AllreduceArgs& args) {
  return static_cast<const std::byte*>(args.send != kInPlace ? args.send : args.recv);
}

// One thread of one rank uses it at a time; all its operations block. They throw
//   UsageError      on every rank, when the ranks' signatures differ or a rank has aborted: the
//                   group remains usable and user memory is as it was;
//   PeerLost        when the process of a peer has ended;
//   what Poll threw on this rank, and TransportError or TimeoutError with the same text on the
//   others.
// After the last two the group is poisoned: every further operation throws.
class NodeGroup final : private Guard {
 public:
  // Collective. Either all ranks get a group, or all get nullptr and the same `reason`: the ranks
  // share no memory, or there is not enough of it. Rank 0's options count.
  static std::unique_ptr<NodeGroup> create(Bootstrap& bootstrap, const NodeOptions& options,
                                           std::string& reason);
  ~NodeGroup() override;

  int rank() const { return static_cast<int>(rank_); }
  int size() const { return static_cast<int>(size_); }
  const RankNames& names() const { return names_; }
  std::string own_name() const { return names_.of(rank_); }
  bool spins() const { return waiter_.spins(); }
  const NodeOptions& options() const { return options_; }

  void allreduce(const AllreduceArgs& args);
  // The same in two steps that never wait, for short vectors: what starts() says yes to. Other
  // ranks may call allreduce() meanwhile. Start the next operation only after the last one is
  // finished.
  bool starts(std::size_t bytes) const;
  std::size_t most_startable() const {  // bytes, of two ranks and more
    return std::max(Announcement::kDataBytes, options_.most_in_slots(size_));
  }
  bool start_allreduce(const AllreduceArgs& args);   // false: not yet, call again
  bool finish_allreduce(const AllreduceArgs& args);  // likewise; throws as allreduce() does
  void reduce_scatter_block(const BlockArgs& args);
  void allgather(const BlockArgs& args);
  void bcast(const BcastArgs& args);

  // Nanoseconds that a flag takes from rank 0 to rank 1, the mean of `turns` there and back; 0 on
  // the other ranks. Collective; says what any time measured here is worth.
  double flag_time_ns(unsigned turns, Poll* poll);

  // For a profile: when this rank came to the operation that begins next; 0 takes it back. After
  // that operation, and before the next one, arrival_ns() is when a rank came to it; 0 if that rank
  // did not say.
  void arrive(std::uint64_t ns) { arrival_ns_ = ns; }
  std::uint64_t arrival_ns(int rank) const {
    const Particulars& theirs = states_[rank].particulars[operation_ & 1];
    return theirs.arrival_of == operation_ ? theirs.arrival_ns : 0;
  }
  // Likewise: to what the nanoseconds of long waits are added from now on.
  void charge_long_waits(std::atomic<std::uint64_t>& sum) { waiter_.charge_long_waits(sum); }

  // Whether ranks have disagreed, or one has aborted, in any operation so far.
  bool has_disagreed() const { return has_disagreed_; }

  // This rank's arguments were refused: take part in the agreement of the next operation, so that
  // the peers throw UsageError with this rank and reason. Does not wait for them, unless this rank
  // aborted the operation before as well.
  void abort(std::string_view reason, Poll* poll = nullptr);
  bool may_abort() const { return !catch_up_ || all_announced(); }  // without waiting
  // Who keeps this rank waiting, in words. Only while an operation waits, by the thread that does.
  std::string missing() const;
  // Whether this is the lowest rank of those that wait in the operation.
  bool is_first_to_wait() const;
  // Throws PeerLost if the process of a peer has ended, TransportError if the group is poisoned.
  void check_peers() const;
  bool poisoned() const { return header_.poison.load(std::memory_order_relaxed) != 0; }
  // Make every other rank throw; the first reason stays.
  void poison(const FailureReport& report) noexcept;

 private:
  friend class Shrinking;  // works in the same memory
  friend struct testing::ManyOperations;
  class Disagreement : public UsageError {
    using UsageError::UsageError;
  };

  NodeGroup(std::shared_ptr<Segment> segment, std::size_t rank, std::vector<ProcessId> processes,
            RankNames names, bool spins);

  static void prepare(Segment& segment, std::size_t ranks, const NodeOptions& options);
  void glance() override;
  void check_awaited() override;
  void check_peer(std::size_t peer) const;
  bool departed_long_ago(std::size_t peer) const;
  std::uint64_t finished(std::size_t rank) const {
    return states_[rank].finished.load(std::memory_order_acquire);
  }
  void finish() { states_[rank_].finished.store(operation_, std::memory_order_release); }
  [[noreturn]] void throw_poisoned() const;

  // An operation: run `body`, and poison the group if it is left by anything but a disagreement.
  template <class Body>
  void operate(Poll* poll, Body&& body);
  template <class Body>
  void guarded(Body&& body);
  void enter(Poll* poll);
  void fail(const FailureReport& report) noexcept;
  void announce(const Signature& signature, const void* data, std::size_t bytes);
  void await_announcements(const Signature& signature);
  void await_peers(std::uint64_t operation);
  bool all_announced() const;
  void check_now_and_then();
  [[noreturn]] void throw_disagreement(const Signature& signature) const;
  Signature announced(std::size_t rank) const;

  // Steps within an operation, from 1. What a rank publishes counts those of earlier operations as
  // well: all ranks take the same steps, so that each knows what a peer's count means, and no count
  // of an earlier operation reaches into this one. (It once was the operation's number and the
  // step, 32 bits each: after 2^31 operations without steps the last count looked as if it were
  // ahead.)
  void step_done(std::uint64_t step);
  void await_step(std::uint64_t step);
  void await_step(std::size_t rank, std::uint64_t step);
  void steps_end(std::uint64_t steps) { steps_ += steps; }  // of this operation

  // Chunk by chunk, two in flight: export_chunk(c) while peers still use chunk c - 1, then
  // use_chunk(c - 1).
  template <class Export, class Use>
  void pipeline(std::size_t chunks, Export&& export_chunk, Use&& use_chunk);

  bool fits_announcement(std::size_t bytes) const { return bytes <= Announcement::kDataBytes; }
  bool fits_slots(std::size_t bytes) const { return options_.fits_slots(bytes, size_); }
  void announce_input(const AllreduceArgs& args);
  void reduce_inputs(const AllreduceArgs& args);
  void reduce_chunks(const AllreduceArgs& args);
  void exchange_chunks(const AllreduceArgs& args);
  void combine(const AllreduceArgs& args, void* target, std::size_t count);
  void fetch_from_root(const BcastArgs& args);

  std::uint64_t head(const Signature& signature) const;
  Announcement& announcement(std::size_t rank) const {
    return states_[rank].announcement[operation_ & 1];
  }
  std::byte* slot(std::size_t rank) const {
    return slots_ + (2 * rank + (operation_ & 1)) * options_.slot_bytes;
  }
  std::byte* chunk(std::size_t rank, std::size_t index) const {
    return chunks_ + (rank * options_.depth + index % options_.depth) * options_.chunk_bytes;
  }

  std::shared_ptr<Segment> segment_;
  std::size_t rank_, size_;
  std::vector<ProcessId> processes_;  // by rank
  Header& header_;
  NodeOptions options_;
  RankState* states_;
  std::byte* slots_;
  std::byte* chunks_;
  Waiter waiter_;
  std::uint64_t operation_;  // the number of the last one
  std::uint64_t steps_ = 0;  // of all operations before this one; the same on all ranks
  bool catch_up_ = false;    // after abort(): its announcements have not been awaited
  bool has_disagreed_ = false;
  std::uint64_t arrival_ns_ = 0;  // at the operation that is announced next; 0: it does not say
  std::uint64_t checked_ns_ = 0;  // when finish_allreduce() looked after the peers
  std::vector<const void*> operands_;  // one per rank, kept here so that no operation allocates
  const RankNames names_;
  mutable std::uint64_t departed_ns_ = 0;  // when a peer was first seen to have freed its group
};

template <class Body>
void NodeGroup::operate(Poll* poll, Body&& body) {
  guarded([&] {
    enter(poll);
    body();
    finish();
  });
}

template <class Body>
void NodeGroup::guarded(Body&& body) {
  try {
    body();
  } catch (const Disagreement&) {
    has_disagreed_ = true;
    finish();
    throw;
  } catch (...) {
    fail(report_of(std::current_exception()));
    throw;
  }
}

// At time t a rank exports chunk t (step t + 1), then uses the peers' chunk t - 1. The export
// overwrites chunk t - depth, which a peer has used once it has done step t - depth + 3; at time t
// - 1 we saw its step t - 1, so a depth of 4 is enough.
template <class Export, class Use>
void NodeGroup::pipeline(std::size_t chunks, Export&& export_chunk, Use&& use_chunk) {
  for (std::size_t time = 0; time <= chunks; ++time) {
    if (time < chunks) {
      export_chunk(time);
      step_done(time + 1);
    }
    if (time >= 1) {
      await_step(time);
      use_chunk(time - 1);
    }
  }
  steps_end(chunks);
}

}  // namespace gradred
