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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/failure.h"
#include "base/flow.h"
#include "base/in_place.h"
#include "base/signature.h"
#include "liveness/process.h"
#include "liveness/wait_record.h"
#include "node/bootstrap.h"
#include "node/faster_way.h"
#include "node/layout.h"
#include "node/peer_arrays.h"
#include "node/pool.h"
#include "node/single_copy.h"
#include "node/steps.h"
#include "node/stores.h"
#include "node/wait.h"
#include "reduce/reduce.h"

namespace gradred {

class Workspace;

namespace testing {
struct ManyOperations;  // lets a test go on as after any number of them
struct NoMoreMemory;    // and as where memory has run out
}  // namespace testing

// One operation on this rank: an allreduce, reduce_scatter_block, allgather, bcast or alltoall.
//   reduce_scatter_block  send holds size * count elements, recv count of them; in place the first
//                         count of recv, which then holds size * count
//   allgather             send holds count elements, recv size * count; in place this rank's part
//                         of recv is the input
//   bcast                 recv holds count elements; send is not looked at
//   alltoall              send holds what this rank gives each rank, recv what it gets of each, one
//                         after the other, as long as `splits` says; not in place. `count`: the
//                         most that a rank gives
// With `parts` the blocks are parts of one vector of `count` elements, as long as they say, and of
// which some may be empty: each rank combines its own, or gives it to all, where it lies in recv.
//   reduce_scatter_block  send, or recv in place, holds the vector; of recv only the part is
//   written allgather             in place
struct NodeCall {
  Kind kind = Kind::kAllreduce;
  const void* send = kInPlace;  // or the input, which does not overlap recv
  void* recv = nullptr;
  std::size_t count = 0;
  std::size_t element = 0;  // bytes
  const ReduceFunctions* reduce = nullptr;
  int root = 0;
  Signature signature;
  // The first element of each rank's part, then count; null: equal blocks. Agreed, and alive as
  // long as the call.
  const std::size_t* parts = nullptr;
  // With parts: the vector's blocks of so many elements, where the parts' stand in recv.
  const std::uint32_t* order = nullptr;
  std::size_t block = 0;
  // Of an alltoall: elements from rank to rank, as `parts`.
  const std::size_t* splits = nullptr;
  // Rank 0 leads: it gets what all give, and what it then passes on is the result of the others. By
  // NodeExecution, where may_lead() what is given and what is passed on.
  //   allreduce  it gets the sums
  //   allgather  `parts` says where in recv each rank's `count` elements go, and `total` is passed
  //              on; in place
  //   bcast      it gets what the root gives, which may be no rank of these: -1
  bool led = false;
  std::size_t total = 0;  // elements; 0: count
  // Of an allreduce or broadcast by NodeExecution: this rank's input comes, and its result goes,
  // while it is under way. Null: the input is there.
  Flow* flow = nullptr;
  // Of flow: if all ranks have one, this is carried out in its place.
  DeviceCall* device = nullptr;
};

// One thread of one rank uses it at a time, and one operation at a time is under way. Operations
// block here; NodeExecution carries out the same ones without. They throw
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
  // The same of processes of a pool, with nothing to wait for: rank 0 reserves memory and tells the
  // others where it begins, then all join. What was reserved is theirs once they know of it.
  // nullptr: there is none.
  static PoolPart* reserve(Pool& pool, std::size_t ranks, const NodeOptions& options);
  static std::unique_ptr<NodeGroup> join(std::shared_ptr<Pool> pool, std::size_t begin,
                                         std::span<const std::size_t> members, std::size_t rank,
                                         RankNames names);
  ~NodeGroup() override;

  int rank() const { return static_cast<int>(rank_); }
  int size() const { return static_cast<int>(size_); }
  const RankNames& names() const { return names_; }
  std::string own_name() const { return names_.of(rank_); }
  const ProcessId& process(int rank) const { return processes_[static_cast<std::size_t>(rank)]; }
  const std::shared_ptr<Pool>& pool() const { return pool_; }
  bool spins() const { return waiter_.spins(); }
  const NodeOptions& options() const { return options_; }

  void run(const NodeCall& call, Poll* poll = nullptr);  // nothing to do while waiting

  // Nanoseconds that a flag takes from rank 0 to rank 1, the mean of `turns` there and back; 0 on
  // the other ranks. Collective; says what any time measured here is worth.
  double one_way_latency_ns(unsigned turns, Poll* poll);

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

  // Whether rank 0 can lead an operation on so much: agreed, and always the same.
  bool may_lead(std::size_t bytes) const { return led_.fits_slots(bytes, size_); }

  // How many operations have read peers' memory so far.
  std::uint64_t single_copies() const { return single_copies_; }
  // How many peers' inputs this rank has read in them without the kernel.
  std::uint64_t mapped_reads() const { return mapped_reads_; }
  // How often this rank has written past the caches what peers read.
  std::uint64_t stores_past() const { return stores_past_; }

  // Whether ranks have disagreed, or one has aborted, in any operation so far.
  bool has_disagreed() const { return has_disagreed_; }

  // This rank's arguments were refused: take part in the agreement of the next operation, so that
  // the peers throw UsageError with this rank and reason. Does not wait for them, unless this rank
  // aborted the operation before as well.
  void abort(std::string_view reason, Poll* poll = nullptr);
  std::string refused_text(std::string_view reason) const {
    return own_name() + " refused its arguments: " + std::string(reason);
  }
  // Who keeps this rank waiting, in words. Only while an operation waits, by the thread that does.
  std::string missing() const;
  WaitRecord wait_record() const;  // the same in numbers
  // Whether this is the lowest rank of those that wait in the operation.
  bool is_first_to_wait() const;
  // Throws PeerLost if the process of a peer has ended, TransportError if the group is poisoned.
  void check_peers() const;
  void throw_if_poisoned() const {
    if (poisoned()) throw_poisoned();
  }
  bool poisoned() const { return header_.poison.load(std::memory_order_relaxed) != 0; }
  // Make every other rank throw; the first reason stays.
  void poison(const FailureReport& report) noexcept;

 private:
  // Work in the same memory.
  friend class NodeExecution;
  friend class Shrinking;
  friend struct Steps::promise_type;
  friend struct testing::ManyOperations;
  friend struct testing::NoMoreMemory;
  class Disagreement : public UsageError {
    using UsageError::UsageError;
  };

  NodeGroup(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank,
            std::vector<ProcessId> processes, RankNames names, bool spins);

  static void populate(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                       PoolPart::Real wanted);
  static void prepare(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options);
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
  void enter();
  void fail(const FailureReport& report) noexcept;
  void announce(const Signature& signature, const void* data, std::size_t bytes);
  void announce_refusal(std::string_view text);
  void await_announcements(const Signature& signature);
  // A peer's of an operation; that of the first peer which has made none.
  Awaited announcement_of(std::size_t peer, std::uint64_t operation) const {
    return {&states_[peer].announcement[operation & 1].head, operation << 32, &states_[peer].bell,
            waiter_.expected()};
  }
  std::optional<Awaited> missing_announcement(std::uint64_t operation) const;
  void await_peers(std::uint64_t operation);
  [[noreturn]] void throw_disagreement(const Signature& signature) const;
  Signature announced(std::size_t rank) const;

  // Steps within an operation, from 1. What a rank publishes counts those of earlier operations as
  // well: all ranks take the same steps, so that each knows what a peer's count means, and no count
  // of an earlier operation reaches into this one. (It once was the operation's number and the
  // step, 32 bits each: after 2^31 operations without steps the last count looked as if it were
  // ahead.)
  void step_done(std::uint64_t step);
  Awaited step_of(std::size_t rank, std::uint64_t step) const {
    return {&states_[rank].progress, steps_ + step, &states_[rank].bell, waiter_.expected()};
  }
  void steps_end(std::uint64_t steps) { steps_ += steps; }  // of this operation
  std::size_t peer_at(std::size_t distance) const { return (rank_ + distance) % size_; }

  // By its size an operation's data travel in the announcements, in the slots, or chunk by chunk.
  enum class Path : std::uint8_t { kInLine, kSlots, kChunks };
  // Slots and chunks are used whole from one operation on. Rank 0 says so with its announcement of
  // that operation, for which no rank has yet taken the path of a larger slot: all ranks choose the
  // path by what was said before, and cut chunks by what is said when all have announced.
  void make_whole() noexcept;
  void use_whole_if_said(std::uint64_t until);
  std::size_t input_bytes(const NodeCall& call) const;
  // Of rank's block or part of the vector that all blocks or parts make.
  std::size_t part_begin(const NodeCall& call, std::size_t rank) const {
    return (call.parts != nullptr ? call.parts[rank] : rank * call.count) * call.element;
  }
  std::size_t part_bytes(const NodeCall& call, std::size_t rank) const {
    return part_begin(call, rank + 1) - part_begin(call, rank);
  }
  std::size_t longest_part(const NodeCall& call) const;
  std::size_t given_bytes(const NodeCall& call) const;  // of input_of()
  // Of an alltoall: from rank to rank; of all that a rank gives, or gets, those before.
  std::size_t split_bytes(const NodeCall& call, std::size_t from, std::size_t to) const {
    return call.splits[from * size_ + to] * call.element;
  }
  std::size_t given_before(const NodeCall& call, std::size_t from, std::size_t to) const;
  std::size_t got_before(const NodeCall& call, std::size_t to, std::size_t from) const;
  static std::size_t passed_on_bytes(const NodeCall& call) {
    return (call.total != 0 ? call.total : call.count) * call.element;
  }
  template <class Use>
  static void for_runs(const NodeCall& call, std::size_t begin, std::size_t bytes, Use use);
  const std::byte* input_of(const NodeCall& call) const;
  Path path_of(const NodeCall& call) const;
  void announce_input(const NodeCall& call, Path path);
  // Allreduces through slots with which rank 0 says how to write from the next one on.
  static bool chooses_stores(const NodeCall& call) {
    return call.kind == Kind::kAllreduce && !call.led &&
           call.count * call.element >= FasterStores::kLeast;
  }
  void announce_measured(const NodeCall& call);
  void reduce_measured(const NodeCall& call);
  // Into memory that peers read, the way of the operation under way.
  void give(std::byte* target, const std::byte* source, std::size_t bytes);
  void take_inputs(const NodeCall& call, Path path);
  template <class Given>
  void take_parts(const NodeCall& call, Given given);
  void combine(const NodeCall& call, void* target, std::size_t count);
  // led.cc
  void lead(const Signature& signature);
  void take_charge(const NodeCall& call, Path path);
  void pass_on(const NodeCall& call, Path path);
  void take_passed_on(const NodeCall& call, Path path);
  bool is_here(std::size_t peer) const;
  Steps chunks(const NodeCall& call);
  // A run of bytes cut into equal pieces, the last one shorter.
  struct Pieces {
    std::size_t bytes, piece;

    std::size_t count() const { return (bytes + piece - 1) / piece; }
    std::size_t begin(std::size_t index) const { return index * piece; }
    std::size_t length(std::size_t index) const {  // 0 behind the end
      return std::min(piece, bytes - std::min(bytes, begin(index)));
    }
    std::size_t end(std::size_t index) const { return std::min(bytes, begin(index + 1)); }
  };
  template <class Export, class Use>
  Steps pipeline(Pieces pieces, Flow* flow, Export export_chunk, Use use_chunk);
  Steps reduce_chunks(const NodeCall& call);
  Steps exchange_chunks(NodeCall call);
  void reduce_twice(const NodeCall& call, std::byte* shared, std::byte* result, std::size_t count);
  // single_copy.h
  bool may_copy_once(const NodeCall& call) const;
  void announce_offer(const NodeCall& call);
  void offer_memory(const NodeCall& call, ReadOffer& offer);
  void choose_way(const NodeCall& call, ReadOffer& offer);
  static void offer_places(std::size_t bytes, bool swaps, ReadOffer& offer);
  ReadOffer offer_of(std::size_t rank) const;
  std::size_t decider(const NodeCall& call) const;
  std::uint64_t begin_measuring(const NodeCall& call) const;
  void end_measuring(const NodeCall& call, std::uint64_t begin);
  bool measures_ways(const NodeCall& call) const;
  bool copies_once(const NodeCall& call);
  bool writes_past(const NodeCall& call) const;
  void try_peers();
  const std::byte* view_of(std::size_t peer, FilePlace place, const std::byte* address,
                           std::size_t bytes);
  void read_peer(std::size_t peer, std::byte* target, const std::byte* source, std::size_t bytes);
  void read_input(std::size_t peer, std::byte* target, std::size_t begin, std::size_t bytes);
  Steps single_copy(const NodeCall& call);
  struct Reading {
    bool past;          // the caches: results
    std::size_t piece;  // bytes that are reduced at a time
  };
  Steps reduce_by_reading(NodeCall call);
  Reading begin_reading(const NodeCall& call);
  void reduce_part(const NodeCall& call, const Reading& reading, std::size_t first,
                   std::size_t count);
  void fetch_part(const NodeCall& call, const Reading& reading, std::size_t peer, std::size_t first,
                  std::size_t count);
  Steps gather_by_reading(NodeCall call);
  Steps fetch_by_reading(NodeCall call);
  Steps swap_by_reading(NodeCall call);
  // on_devices.cc
  static void offer_arrays(const DeviceCall& device, ReadOffer& offer);
  bool all_on_devices(const NodeCall& call) const;
  bool any_is_unknown() const;
  bool takes_arrays(const NodeCall& call) const;
  void open_all(Workspace& workspace, std::span<char> why, std::span<char> why_no_arrays) const;
  void work_on_arrays(const NodeCall& call);
  Steps on_devices(NodeCall call);
  Steps scatter_chunks(const NodeCall& call);
  Steps gather_chunks(const NodeCall& call);
  Steps swap_chunks(const NodeCall& call);
  Steps fetch_chunks(NodeCall call);
  void* frame(std::size_t bytes);

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

  const std::shared_ptr<Pool> pool_;
  std::byte* const memory_;  // of the group
  PoolPart* const part_;     // of rank 0: the same
  std::size_t rank_, size_;
  std::vector<ProcessId> processes_;  // by rank
  Header& header_;
  const NodeOptions options_;
  NodeOptions usable_;  // the same, or only what is memory so far of slots and chunks
  NodeOptions led_;     // what was usable when the group was made
  bool whole_;          // the same
  bool tried_ = false;  // rank 0: to get the rest
  RankState* states_;
  std::byte* slots_;
  std::byte* chunks_;
  Waiter waiter_;
  std::uint64_t operation_;  // the number of the last one
  std::uint64_t steps_ = 0;  // of all operations before this one; the same on all ranks
  bool catch_up_ = false;    // after abort(): its announcements have not been awaited
  bool has_disagreed_ = false;
  std::unique_ptr<FasterWay> faster_way_;  // of the rank that decides
  FasterWay::Calls chosen_for_;            // the operation under way
  FasterStores stores_;
  bool past_ = false;           // of the operation under way
  std::uint64_t store_ns_ = 0;  // what it has taken to write, if this is measured
  std::uint64_t beacon_ = 0;    // read by peers, to try
  bool tried_peers_ = false;    // whether they can be read
  bool can_read_peers_ = false;
  std::uint64_t single_copies_ = 0;
  std::uint64_t mapped_reads_ = 0;
  std::uint64_t stores_past_ = 0;
  ReadOffer readable_{};  // the last one of memory that the kernel can read, so far
  std::size_t readable_bytes_ = 0;
  std::uint64_t arrival_ns_ = 0;  // at the operation that is announced next; 0: it does not say
  std::vector<PeerArrays> peer_arrays_;             // by rank; empty: none has been asked for
  std::vector<const std::byte*> inputs_, outputs_;  // of peers, where they are mapped; by rank
  std::vector<const void*> operands_;    // one per rank, kept here so that no operation allocates
  std::vector<std::byte> scratch_;       // a piece of a result; empty: none has been needed
  std::vector<std::max_align_t> frame_;  // of the coroutine of the operation under way; likewise
  std::uint64_t looked_ns_ = 0;          // when NodeExecution looked after the peers
  const RankNames names_;
  mutable std::uint64_t departed_ns_ = 0;  // when a peer was first seen to have freed its group
};

// Bytes of the vector that its parts make: use(where they lie in recv, how many were before them,
// how many they are) for each run.
template <class Use>
void NodeGroup::for_runs(const NodeCall& call, std::size_t begin, std::size_t bytes, Use use) {
  if (call.order == nullptr) return use(begin, 0, bytes);
  const std::size_t block = call.block * call.element;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t index = (begin + done) / block, inside = (begin + done) % block;
    const std::size_t length = std::min(block - inside, bytes - done);
    use(call.order[index] * block + inside, done, length);
    done += length;
  }
}

template <class Body>
void NodeGroup::operate(Poll* poll, Body&& body) {
  guarded([&] {
    waiter_.use(poll);
    enter();
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

template <class... Arguments>
void* Steps::promise_type::operator new(std::size_t bytes, NodeGroup& group, const Arguments&...) {
  return group.frame(bytes);
}

}  // namespace gradred
