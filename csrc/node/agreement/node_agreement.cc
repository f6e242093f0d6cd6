#include "node/agreement/node_agreement.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "liveness/local_peers.h"
#include "liveness/status_page.h"
#include "node/memory/copy.h"

namespace gradred {
namespace {

// The announcement has 32 bits for the hash. Ranks compare `what` in full.
std::uint32_t hash_of(std::uint64_t detail) {
  detail *= 0x9E3779B97F4A7C15ULL;
  return static_cast<std::uint32_t>(detail >> 32);
}

}  // namespace

NodeAgreement::NodeAgreement(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank,
                             std::vector<ProcessId> processes, RankNames names, bool spins)
    : rank_(rank),
      size_(processes.size()),
      processes_(std::move(processes)),
      names_(std::move(names)),
      part_(std::move(pool), begin, rank_, size_),
      waiter_(spins, *this,
              spins && !options().sleeps ? &part_.header().sleepers_expected : nullptr),
      operation_(options().first_operation - 1),
      in_tree_(size_) {}

NodeAgreement::~NodeAgreement() {
  // A forked child that destroys its copy of this object has not left the group.
  if (processes_[rank_].pid != getpid()) return;
  RankState& mine = part_.state(rank_);
  mine.departed.store(1, std::memory_order_release);
  ring(mine.bell);
  // The part must not be touched after this store, since another group may take it.
  part_.header().users.fetch_sub(1, std::memory_order_acq_rel);
}

void NodeAgreement::enter() {
  glance();
  if (catch_up_) [[unlikely]] {
    await_peers();
    catch_up_ = false;
  }
  part_.use_more_if_said(operation_);
  ++operation_;
}

std::uint64_t NodeAgreement::head(const Signature& signature) const {
  return operation_ << 32 | hash_of(signature.detail);
}

void NodeAgreement::announce(const Signature& signature, const void* data, std::size_t bytes) {
  Announcement& mine = announcement(rank_);
  Particulars& published = particulars(rank_);
  published.detail = signature.detail;
  if (arrival_ns_ != 0) [[unlikely]] {
    published.arrival_ns = std::exchange(arrival_ns_, 0);
    published.arrival_of = operation_;
  }
  mine.what = signature.what;
  copy_few(mine.data, static_cast<const std::byte*>(data), bytes);
  waiter_.publish(mine.head, head(signature), part_.state(rank_).bell);
  post_begun(operation_, signature);  // last, so that peers need not wait for it
}

void NodeAgreement::await_announcements(const Signature& signature) {
  const std::uint64_t agreed = head(signature);
  bool same = true;
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Announcement& theirs = announcement(peer);
    waiter_.wait(announcement_of(peer));
    same &= theirs.head.load(std::memory_order_relaxed) == agreed && theirs.what == signature.what;
  }
  if (!same) [[unlikely]] {
    throw_disagreement(signature);
  }
}

void NodeAgreement::await_peers() {
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer != rank_) waiter_.wait(announcement_of(peer));
  }
}

std::optional<Awaited> NodeAgreement::missing_announcement() const {
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Awaited awaited = announcement_of(peer);
    if (!awaited.reached()) return awaited;
  }
  return std::nullopt;
}

Signature NodeAgreement::announced(std::size_t rank) const {
  return {announcement(rank).what, particulars(rank).detail};
}

// Marks the leader's arrival without an announcement.
void NodeAgreement::lead(const Signature& signature) {
  particulars(rank_).detail = signature.detail;
  announcement(rank_).what = signature.what;
  part_.state(rank_).leading.store(operation_, std::memory_order_relaxed);
}

void NodeAgreement::compare_with_followers(const Signature& signature) {
  try {
    await_announcements(signature);  // all are there, so this only compares
  } catch (const Disagreement& error) {
    announce_refusal(error.what());
    catch_up_ = false;
    throw;
  }
}

// A leader that refuses has not seen all announcements, nor has a rank that leaves because of it.
void NodeAgreement::compare_with_leader(const Signature& signature) {
  const Announcement& leaders = announcement(0);
  const bool same = leaders.head.load(std::memory_order_relaxed) == head(signature) &&
                    leaders.what == signature.what;
  if (same) [[likely]] {
    return;
  }
  const Signature theirs = announced(0);
  catch_up_ = true;
  const bool refused = SignatureFields(theirs).is(Kind::kAborted);
  throw Disagreement(refused
                         ? particulars(0).reason
                         : disagreement_text(names_.of(rank_), signature, names_.of(0), theirs));
}

// The announcements differ, so every rank sees one that differs from its own. An aborted one gives
// the best explanation and is reported first.
void NodeAgreement::throw_disagreement(const Signature& signature) const {
  for (std::size_t peer = 0; peer < size_; ++peer) {
    const bool refused = SignatureFields(announced(peer)).is(Kind::kAborted);
    if (peer == rank_ || !refused) continue;  // the leader has not announced yet
    throw Disagreement(particulars(peer).reason);
  }
  std::size_t other = 0;
  while (other == rank_ || announced(other) == signature) ++other;
  throw Disagreement(
      disagreement_text(names_.of(rank_), signature, names_.of(other), announced(other)));
}

void NodeAgreement::announce_refusal(std::string_view text) {
  set_text(particulars(rank_).reason, text);
  announce({make_signature(Kind::kAborted, Op::kSum, DType::kUInt8, 0).what, 0}, nullptr, 0);
  catch_up_ = true;
}

void NodeAgreement::abort(std::string_view reason, Poll* poll) {
  operate(poll, [&] { announce_refusal(refused_text(reason)); });
}

std::string NodeAgreement::missing() const {
  std::string absent, busy;
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || finished(peer) >= operation_) continue;
    const bool here = is_here(peer);
    std::string& list = here ? busy : absent;
    const std::string left = ", last left operation " + std::to_string(finished(peer));
    list += (list.empty() ? "" : ", ") +
            names_.of(peer, doing_text(processes_[peer]) + (here ? "" : left));
  }
  return "operation " + std::to_string(operation_) + " (" + describe_with_bytes(announced(rank_)) +
         ") among " + std::to_string(size_) +
         " ranks; missing: " + (absent.empty() ? "none, but unfinished: " + busy : absent);
}

WaitRecord NodeAgreement::wait_record() const {
  WaitRecord found{.state = WaitRecord::State::kOnNode,
                   .ranks = static_cast<std::uint32_t>(size_),
                   .operation = operation_,
                   .what = announced(rank_).what};
  WaitRecord unfinished = found;
  bool any_absent = false;
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || finished(peer) >= operation_) continue;
    const bool here = is_here(peer);
    any_absent |= !here;
    (here ? unfinished : found).add_missing(static_cast<std::size_t>(names_.number(peer)));
  }
  return any_absent ? found : unfinished;
}

bool NodeAgreement::is_here(std::size_t peer) const {
  return has_reached(announcement(peer).head, operation_ << 32) ||
         part_.state(peer).leading.load(std::memory_order_relaxed) == operation_;
}

bool NodeAgreement::is_first_to_wait() const {
  for (std::size_t peer = 0; peer < rank_; ++peer) {
    const bool waits = is_here(peer) && finished(peer) < operation_;
    if (waits && is_going(processes_[peer])) return false;
  }
  return true;
}

void* NodeAgreement::frame(std::size_t bytes) {
  const std::size_t units = (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
  if (units > frame_.size()) frame_.resize(units);
  return frame_.data();
}

void NodeAgreement::glance() {
  if (poisoned()) [[unlikely]] {
    throw_poisoned();
  }
}

// A rank may free its group or end as soon as it has left the last operation, even while others are
// still in it. The others need nothing more from that rank.
void NodeAgreement::check_awaited() {
  const std::uint64_t now = now_ns();
  for (std::size_t peer = 0; peer < size_; ++peer) {
    const std::atomic<std::uint64_t>& finished = part_.state(peer).finished;
    if (finished.load(std::memory_order_acquire) == operation_) continue;
    try {
      check_peer(peer, now);
    } catch (const PeerLost&) {
      // The peer may have finished and left between the two loads.
      if (finished.load(std::memory_order_acquire) != operation_) throw;
    }
  }
}

void NodeAgreement::look_after_peers(const Awaited& awaited) {
  constexpr std::uint64_t kEveryNs = 50'000'000;
  const std::uint64_t now = now_ns();
  if (now - looked_ns_ < kEveryNs) return;
  looked_ns_ = now;
  try {
    check_awaited();
  } catch (const PeerLost&) {
    // A peer may end right after its last publication.
    if (awaited.word == nullptr || !awaited.reached()) throw;
  }
}

void NodeAgreement::check_peers() const {
  throw_if_poisoned();
  // The same time for all, since others may have left because the first one did.
  const std::uint64_t now = now_ns();
  for (std::size_t peer = 0; peer < size_; ++peer) check_peer(peer, now);
}

void NodeAgreement::check_peer(std::size_t peer, std::uint64_t now) const {
  if (peer == rank_) return;
  const ProcessId& process = processes_[peer];
  const bool same = process == processes_[rank_];
  const ShutdownRecord* shutdown_record = same ? nullptr : shutdown_record_of(process);
  if (shutdown_record == nullptr && departed_long_ago(peer, now)) {
    throw PeerLost(names_.of(peer) + " has freed this communicator while others still use it",
                   true);
  }
  if (shutdown_record == nullptr && (same || is_alive(process))) return;
  // The peer may have left because of an earlier failure, which it recorded before it left.
  if (part_.header().poison.load(std::memory_order_acquire) != 0) throw_poisoned();
  throw PeerLost(names_.of(peer, process_text(process)) + " " +
                     (shutdown_record != nullptr ? shutdown_record->reason : "has ended"),
                 true);
}

// A program that ends frees its communicators shortly before it publishes that it ends.
bool NodeAgreement::departed_long_ago(std::size_t peer, std::uint64_t now) const {
  constexpr std::uint64_t kMomentNs = 1'000'000'000;
  if (part_.state(peer).departed.load(std::memory_order_acquire) == 0) return false;
  std::uint64_t since = 0;  // overwritten if a departure was seen before
  if (departed_ns_.compare_exchange_strong(since, now)) return false;
  return static_cast<std::int64_t>(now - since) >= static_cast<std::int64_t>(kMomentNs);
}

void NodeAgreement::fail(const FailureReport& report) noexcept {
  forget_peers();
  if (part_.header().poison.load(std::memory_order_relaxed) != 0) return;
  try {
    poison({report.kind,
            report.text + " (found by " + own_name() + " in operation " +
                std::to_string(operation_) + ")",
            report.id});
  } catch (const std::bad_alloc&) {
    poison(report);
  }
}

void NodeAgreement::poison(const FailureReport& report) noexcept {
  process_poisoned.store(true, std::memory_order_relaxed);
  std::uint32_t sound = 0;
  if (!part_.header().poison.compare_exchange_strong(sound, 1, std::memory_order_acq_rel)) return;
  part_.header().failure = report.kind;
  part_.header().failure_id = report.id;
  set_text(part_.header().reason, report.text);
  part_.header().poison.store(2, std::memory_order_release);
  for (std::size_t rank = 0; rank < size_; ++rank) ring(part_.state(rank).bell);
}

void NodeAgreement::throw_poisoned() const {
  // Writing the reason takes a moment, and the rank that began to write may have ended meanwhile.
  for (int look = 0; look < 1000 && part_.header().poison.load(std::memory_order_acquire) != 2;
       ++look) {
    usleep(100);
  }
  if (part_.header().poison.load(std::memory_order_acquire) != 2) {
    throw_report({Failure::kPeerLost, "a rank ended while it reported to the others why it failed"},
                 true, names_.carries());
  }
  throw_report({part_.header().failure, part_.header().reason, part_.header().failure_id}, true,
               names_.carries());
}

}  // namespace gradred
