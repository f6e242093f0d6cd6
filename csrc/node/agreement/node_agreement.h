// The agreement among the ranks of one host, which every operation in their shared memory begins
// with: the base of a node group (group.h), for the classes that move the operations' data
// (ways.h).
//
// Each operation has a number and begins with an announcement (layout.h): the number, the signature
// and, if they fit, the data. No rank writes peers' data to user memory before it has seen that all
// announcements agree.
//
// Why two announcements and two slots per rank, used in turn, are enough: a rank leaves operation k
// only after it has seen all announcements of k. (After abort() it waits for them before it
// announces the next operation.) So a rank that announces k + 2 has left k + 1. Hence every peer
// has announced k + 1, has left k, and reads nothing of k any more. For the same reason, a peer's
// announcement at index k % 2 is that of k or of k - 2, never that of k + 2. So 32 bits of the
// number are enough to tell them apart.
//
// A rank's arrival time is stored beside its announcement and follows the same rule. Peers read it
// after they have left k and before they announce k + 1; the rank overwrites it when it
// announces k + 2.
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
#include "base/used_transport.h"
#include "liveness/process.h"
#include "liveness/wait_record.h"
#include "node/agreement/node_call.h"
#include "node/memory/bootstrap.h"
#include "node/memory/layout.h"
#include "node/memory/pool.h"
#include "node/memory/shared_part.h"
#include "node/memory/wait.h"

namespace gradred {

namespace testing {
struct ManyOperations;  // lets a test start after any number of operations
}  // namespace testing

class NodeAgreement : private Guard {
 public:
  NodeAgreement(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank,
                std::vector<ProcessId> processes, RankNames names, bool spins);
  ~NodeAgreement() override;

  int rank() const { return static_cast<int>(rank_); }
  int size() const { return static_cast<int>(size_); }
  const RankNames& names() const { return names_; }
  // Sets the numbers by which messages call the ranks. Must be called before any other thread uses
  // the group.
  void call_ranks(std::vector<int> called) { names_.call(std::move(called)); }
  std::string own_name() const { return names_.of(rank_); }
  const ProcessId& process(int rank) const { return processes_[static_cast<std::size_t>(rank)]; }
  const std::shared_ptr<Pool>& pool() const { return part_.pool(); }
  bool spins() const { return waiter_.spins(); }
  const NodeOptions& options() const { return part_.options(); }
  // How many threads of this rank work on a long operation; set before the first one.
  void use_threads(std::size_t threads) { threads_ = threads; }
  std::size_t threads() const { return threads_; }

  // For profiles: sets when this rank arrived at the operation that begins next; 0 cancels it.
  // After that operation and before the next one, arrival_ns() returns when a rank arrived at it,
  // or 0 if that rank recorded no time.
  void arrive(std::uint64_t ns) { arrival_ns_ = ns; }
  std::uint64_t arrival_ns(int rank) const {
    const Particulars& theirs = particulars(static_cast<std::size_t>(rank));
    return theirs.arrival_of == operation_ ? theirs.arrival_ns : 0;
  }
  // For profiles: from now on adds the nanoseconds of long waits to `sum`.
  void charge_long_waits(std::atomic<std::uint64_t>& sum) { waiter_.charge_long_waits(sum); }

  // Whether rank 0 can lead an operation on `bytes` bytes. The answer is the same on all ranks and
  // never changes.
  bool may_lead(std::size_t bytes) const {
    return part_.usable_at_first().fits_slots(bytes, size_);
  }

  // Called when this rank refuses its arguments: takes part in the agreement on the next operation,
  // so that the peers throw UsageError with this rank and `reason`. Does not wait for the peers,
  // unless this rank has aborted the previous operation as well.
  void abort(std::string_view reason, Poll* poll = nullptr);
  std::string refused_text(std::string_view reason) const {
    return own_name() + " refused its arguments: " + std::string(reason);
  }
  // A text that names the ranks for which this rank waits. Only the thread that waits may call it,
  // and only while an operation waits.
  std::string missing() const;
  WaitRecord wait_record() const;  // the same in numbers
  // Whether this is the lowest of the ranks that wait in the operation.
  bool is_first_to_wait() const;
  // Throws PeerLost if the process of a peer has ended, and TransportError if the group is
  // poisoned.
  void check_peers() const;
  void check_peer(std::size_t peer) const { check_peer(peer, now_ns()); }  // the same for one peer
  void throw_if_poisoned() const {
    if (poisoned()) throw_poisoned();
  }
  bool poisoned() const { return part_.header().poison.load(std::memory_order_relaxed) != 0; }
  // Makes every other rank throw. If several ranks call it, the first report stays.
  void poison(const FailureReport& report) noexcept;

  // The functions that follow are for the classes that carry out operations (ways.h,
  // node_execution.h).
  const SharedPart& part() const { return part_; }
  SharedPart& part() { return part_; }
  Waiter& waiter() { return waiter_; }

  // Carries out an operation: runs `body`, and poisons the group if `body` throws anything but a
  // disagreement.
  template <class Body>
  void operate(Poll* poll, Body&& body);
  template <class Body>
  void guarded(Body&& body);
  // If this rank has refused the previous operation: the first announcement of that operation that
  // is still missing. enter() would wait for it.
  std::optional<Awaited> missing_to_enter() const {
    return catch_up_ ? missing_announcement() : std::nullopt;
  }
  void enter();
  // uses() records which transport carries the data of an operation; used_transport() returns that
  // of the last operation.
  void uses(UsedTransport transport) { used_transport_ = transport; }
  UsedTransport used_transport() const { return used_transport_; }
  void finish() { part_.state(rank_).finished.store(operation_, std::memory_order_release); }
  std::uint64_t operation() const { return operation_; }  // number of the last operation
  // Memory for the coroutine frame of the current operation.
  void* frame(std::size_t bytes);

  void announce(const Signature& signature, const void* data, std::size_t bytes);
  void announce_refusal(std::string_view text);
  Announcement& announcement(std::size_t rank) const {
    return part_.state(rank).announcement[operation_ & 1];
  }
  // The announcement of the first peer that has not announced the operation.
  std::optional<Awaited> missing_announcement() const;
  // Waits for all announcements. Throws if they differ.
  void await_announcements(const Signature& signature);
  [[noreturn]] void throw_disagreement(const Signature& signature) const;
  // Where the tree of flags has found a rank's data.
  std::byte*& in_tree(std::size_t rank) { return in_tree_[rank]; }
  // The cache group of each rank (cache_groups.h); 0 for all: there are none.
  const std::vector<std::uint32_t>& cache_groups() const { return cache_groups_; }
  // Waits for a peer's announcement. Returns whether it has this head and signature.
  bool await_announcement(std::size_t peer, std::uint64_t head, std::uint64_t what) {
    waiter_.wait(announcement_of(peer));
    const Announcement& theirs = announcement(peer);
    return theirs.head.load(std::memory_order_relaxed) == head && theirs.what == what;
  }
  std::uint64_t head(const Signature& signature) const;
  // The next four functions serve operations in which rank 0 is the leader (led.h). lead() marks
  // the leader's arrival without an announcement.
  void lead(const Signature& signature);
  // On the leader, after all others have announced. If the signatures differ, the leader makes all
  // ranks throw.
  void compare_with_followers(const Signature& signature);
  // The other ranks wait for this announcement and then call compare_with_leader().
  Awaited announcement_of_leader() const { return announcement_of(0); }
  void compare_with_leader(const Signature& signature);

  // Steps within an operation, from 1 on. The published count includes the steps of all earlier
  // operations. All ranks take the same steps, so each rank knows what a peer's count means, and a
  // count of an earlier operation never reaches into this one. (An earlier version combined the
  // operation's number and the step, 32 bits each: after 2^31 operations without steps, the last
  // count seemed to be ahead.)
  void step_done(std::uint64_t step) {
    RankState& mine = part_.state(rank_);
    waiter_.publish(mine.progress, steps_ + step, mine.bell);
  }
  Awaited step_of(std::size_t rank, std::uint64_t step) const {
    RankState& theirs = part_.state(rank);
    return {&theirs.progress, steps_ + step, &theirs.bell, waiter_.expected()};
  }
  // `steps`: number of steps that this operation took.
  void steps_end(std::uint64_t steps) { steps_ += steps; }

  // For calls from device to device, which may go on after the operation has ended. They are
  // counted from 1 on, alike on all ranks. This rank publishes that its arrays may be read
  // and written, and that its device has done its share; any thread may do so.
  void tell_arrays_there(std::uint64_t call) {
    RankState& mine = part_.state(rank_);
    waiter_.publish(mine.arrays_there, call, mine.bell);
  }
  void tell_share_done(std::uint64_t call) {
    RankState& mine = part_.state(rank_);
    waiter_.publish(mine.shares_done, call, mine.bell);
  }
  Awaited arrays_there(std::size_t rank, std::uint64_t call) const {
    RankState& theirs = part_.state(rank);
    return {&theirs.arrays_there, call, &theirs.bell, waiter_.expected()};
  }
  Awaited share_done(std::size_t rank, std::uint64_t call) const {
    RankState& theirs = part_.state(rank);
    return {&theirs.shares_done, call, &theirs.bell, waiter_.expected()};
  }

  // Called while an operation waits; does not block. Throws if a peer has failed. Cheap.
  void glance() final;
  // Throws if the process of a peer whose contribution is missing has ended. Checks at most every
  // 50 ms.
  void look_after_peers(const Awaited& awaited);

 protected:
  std::vector<std::uint32_t> cache_groups_;

  // Called when the group fails: nothing of the peers is used any more.
  virtual void forget_peers() noexcept = 0;

 private:
  friend struct testing::ManyOperations;
  class Disagreement : public UsageError {
    using UsageError::UsageError;
  };

  void check_awaited() final;
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
  Signature announced(std::size_t rank) const;
  bool is_here(std::size_t peer) const;
  void await_peers();

  const std::size_t rank_, size_;
  const std::vector<ProcessId> processes_;  // by rank
  RankNames names_;
  SharedPart part_;
  Waiter waiter_;
  std::uint64_t operation_;
  std::uint64_t steps_ = 0;  // steps of all earlier operations; the same on all ranks
  std::size_t threads_ = 1;
  UsedTransport used_transport_ = UsedTransport::kUnknown;
  bool catch_up_ = false;         // after abort(): its announcements have not been awaited yet
  std::uint64_t arrival_ns_ = 0;  // arrival at the next operation; 0: not recorded
  std::uint64_t looked_ns_ = 0;   // when look_after_peers() last checked
  // when this rank first saw that a peer has freed its group; 0: not seen
  mutable std::atomic<std::uint64_t> departed_ns_{0};
  std::vector<std::max_align_t> frame_;  // empty until it is needed
  std::vector<std::byte*> in_tree_;      // by rank
};

template <class Body>
void NodeAgreement::operate(Poll* poll, Body&& body) {
  guarded([&] {
    waiter_.use(poll);
    enter();
    body();
    finish();
  });
}

template <class Body>
void NodeAgreement::guarded(Body&& body) {
  try {
    body();
  } catch (const Disagreement&) {
    finish();
    throw;
  } catch (...) {
    fail(report_of(std::current_exception()));
    throw;
  }
}

}  // namespace gradred
