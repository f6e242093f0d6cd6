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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "base/failure.h"
#include "base/rank_names.h"
#include "base/signature.h"
#include "base/went.h"
#include "liveness/process.h"
#include "liveness/wait_record.h"
#include "node/bootstrap.h"
#include "node/call.h"
#include "node/layout.h"
#include "node/pool.h"
#include "node/shared_part.h"
#include "node/wait.h"

namespace gradred {

class NodeWays;

namespace testing {
struct ManyOperations;  // lets a test go on as after any number of them
}  // namespace testing

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
  // How messages call them: before any other thread uses the group.
  void call_ranks(std::vector<int> called) { names_.call(std::move(called)); }
  std::string own_name() const { return names_.of(rank_); }
  const ProcessId& process(int rank) const { return processes_[static_cast<std::size_t>(rank)]; }
  const std::shared_ptr<Pool>& pool() const { return part_.pool(); }
  bool spins() const { return waiter_.spins(); }
  const NodeOptions& options() const { return part_.options(); }

  void run(const NodeCall& call, Poll* poll = nullptr);  // nothing to do while waiting

  // For a profile: when this rank came to the operation that begins next; 0 takes it back. After
  // that operation, and before the next one, arrival_ns() is when a rank came to it; 0 if that rank
  // did not say.
  void arrive(std::uint64_t ns) { arrival_ns_ = ns; }
  std::uint64_t arrival_ns(int rank) const {
    const Particulars& theirs = particulars(static_cast<std::size_t>(rank));
    return theirs.arrival_of == operation_ ? theirs.arrival_ns : 0;
  }
  // Likewise: to what the nanoseconds of long waits are added from now on.
  void charge_long_waits(std::atomic<std::uint64_t>& sum) { waiter_.charge_long_waits(sum); }

  // Whether rank 0 can lead an operation on so much: agreed, and always the same.
  bool may_lead(std::size_t bytes) const {
    return part_.usable_at_first().fits_slots(bytes, size_);
  }

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
  void check_peer(std::size_t peer) const { check_peer(peer, now_ns()); }  // of one peer
  void throw_if_poisoned() const {
    if (poisoned()) throw_poisoned();
  }
  bool poisoned() const { return part_.header().poison.load(std::memory_order_relaxed) != 0; }
  // Make every other rank throw; the first reason stays.
  void poison(const FailureReport& report) noexcept;

  // What follows is for those who carry out operations (ways.h, execution.h).
  NodeWays& ways() { return *ways_; }
  const SharedPart& part() const { return part_; }
  SharedPart& part() { return part_; }
  Waiter& waiter() { return waiter_; }

  // An operation: run `body`, and poison the group if it is left by anything but a disagreement.
  template <class Body>
  void operate(Poll* poll, Body&& body);
  template <class Body>
  void guarded(Body&& body);
  // Where this rank has refused the operation before: whose announcement of that has to come before
  // enter() does not wait.
  std::optional<Awaited> missing_to_enter() const {
    return catch_up_ ? missing_announcement() : std::nullopt;
  }
  void enter();
  // By which way its data go; of the last operation, for who has carried it out.
  void goes(Went went) { went_ = went; }
  Went how_it_went() const { return went_; }
  void finish() { part_.state(rank_).finished.store(operation_, std::memory_order_release); }
  std::uint64_t operation() const { return operation_; }  // the number of the last one
  // Memory for the coroutine of the operation under way.
  void* frame(std::size_t bytes);

  void announce(const Signature& signature, const void* data, std::size_t bytes);
  void announce_refusal(std::string_view text);
  Announcement& announcement(std::size_t rank) const {
    return part_.state(rank).announcement[operation_ & 1];
  }
  // Of the first peer that has made none.
  std::optional<Awaited> missing_announcement() const;
  void await_announcements(const Signature& signature);  // and throws if they differ
  // Of an operation that rank 0 leads (led.h).
  void lead(const Signature& signature);  // rank 0 is there, and says so without an announcement
  // Rank 0, once all others have announced. If they differ, all get to know it.
  void compare_with_followers(const Signature& signature);
  // The others wait for this, and then compare.
  Awaited announcement_of_leader() const { return announcement_of(0); }
  void compare_with_leader(const Signature& signature);

  // Steps within an operation, from 1. What a rank publishes counts those of earlier operations as
  // well: all ranks take the same steps, so that each knows what a peer's count means, and no count
  // of an earlier operation reaches into this one. (It once was the operation's number and the
  // step, 32 bits each: after 2^31 operations without steps the last count looked as if it were
  // ahead.)
  void step_done(std::uint64_t step) {
    RankState& mine = part_.state(rank_);
    waiter_.publish(mine.progress, steps_ + step, mine.bell);
  }
  Awaited step_of(std::size_t rank, std::uint64_t step) const {
    RankState& theirs = part_.state(rank);
    return {&theirs.progress, steps_ + step, &theirs.bell, waiter_.expected()};
  }
  void steps_end(std::uint64_t steps) { steps_ += steps; }  // of this operation

  // While an operation waits, and does not block. Throws if a peer has given up: cheap.
  void glance() override;
  // Throws if one that still has to contribute has ended: looks now and then.
  void look_after_peers(const Awaited& awaited);

 private:
  friend struct testing::ManyOperations;
  class Disagreement : public UsageError {
    using UsageError::UsageError;
  };

  NodeGroup(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank,
            std::vector<ProcessId> processes, RankNames names, bool spins);

  void check_awaited() override;
  void check_peer(std::size_t peer, std::uint64_t now) const;
  bool departed_long_ago(std::size_t peer, std::uint64_t now) const;
  std::uint64_t finished(std::size_t rank) const {
    return part_.state(rank).finished.load(std::memory_order_acquire);
  }
  Particulars& particulars(std::size_t rank) const {
    return part_.state(rank).particulars[operation_ & 1];
  }
  [[noreturn]] void throw_poisoned() const;
  void fail(const FailureReport& report) noexcept;

  Awaited announcement_of(std::size_t peer) const {
    RankState& theirs = part_.state(peer);
    return {&theirs.announcement[operation_ & 1].head, operation_ << 32, &theirs.bell,
            waiter_.expected()};
  }
  std::uint64_t head(const Signature& signature) const;
  Signature announced(std::size_t rank) const;
  bool is_here(std::size_t peer) const;
  void await_peers();
  [[noreturn]] void throw_disagreement(const Signature& signature) const;

  const std::size_t rank_, size_;
  const std::vector<ProcessId> processes_;  // by rank
  RankNames names_;
  SharedPart part_;
  Waiter waiter_;
  std::uint64_t operation_;
  std::uint64_t steps_ = 0;  // of all operations before this one; the same on all ranks
  Went went_ = Went::kUnknown;
  bool catch_up_ = false;  // after abort(): its announcements have not been awaited
  bool has_disagreed_ = false;
  std::uint64_t arrival_ns_ = 0;  // at the operation that is announced next; 0: it does not say
  std::uint64_t looked_ns_ = 0;   // when look_after_peers() has looked
  mutable std::atomic<std::uint64_t> departed_ns_{
      0};                                // when a peer was first seen to have freed its group
  std::vector<std::max_align_t> frame_;  // empty: none has been needed
  const std::unique_ptr<NodeWays> ways_;
};

// Nanoseconds that a flag takes from rank 0 to rank 1, the mean of `turns` there and back; 0 on the
// other ranks. Collective; says what any time measured here is worth.
double one_way_latency_ns(NodeGroup& group, unsigned turns, Poll* poll);

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

}  // namespace gradred
