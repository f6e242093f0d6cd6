#include "node/group.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "liveness/local_peers.h"
#include "liveness/status_page.h"
#include "node/copy.h"
#include "node/cores.h"

namespace gradred {
namespace {

// What each rank tells the others when the group is made.
struct Introduction {
  PoolMember member;
  std::size_t begin = 0;  // rank 0: where the group's memory begins
  char error[160] = {};   // rank 0: why there is none
};

// Sizes that the paths can work with, whatever was asked for.
NodeOptions usable(NodeOptions options, std::size_t ranks) {
  const auto pages = [](std::size_t bytes) { return std::max(kPage, bytes / kPage * kPage); };
  options.slot_bytes = pages(options.slot_bytes);
  options.chunk_bytes = pages(std::max(options.chunk_bytes, ranks * kCacheLine));
  options.piece_bytes = pages(std::min(options.piece_bytes, options.chunk_bytes));
  options.depth = std::max<std::size_t>(4, options.depth);
  return options;
}

// The announcement has 32 bits for it; a full comparison of `what` stands beside.
std::uint32_t hash_of(std::uint64_t detail) {
  detail *= 0x9E3779B97F4A7C15ULL;
  return static_cast<std::uint32_t>(detail >> 32);
}

}  // namespace

std::unique_ptr<NodeGroup> NodeGroup::create(Bootstrap& bootstrap, const NodeOptions& wanted,
                                             std::string& reason) {
  const auto size = static_cast<std::size_t>(bootstrap.size());
  const NodeOptions options = usable(wanted, size);
  auto pool = Pool::create(bootstrap, Layout(size, options).bytes, reason);
  if (pool == nullptr) return nullptr;
  Introduction mine{.member = {this_process(), cores_of_this_thread()}};
  if (bootstrap.rank() == 0) {  // a pool's first group gets all at once, or there is no pool
    try {
      PoolPart* part = pool->take(Layout(size, options).bytes);
      check(part != nullptr, "a new pool has room for a group of all");
      populate(*pool, *part, size, options, PoolPart::Real::kAll);
      prepare(*pool, *part, size, options);
      mine.begin = part->begin;
    } catch (const TransportError& error) {
      set_text(mine.error, error.what());
    }
  }
  std::vector<Introduction> all(size);
  bootstrap.allgather(&mine, sizeof mine, all.data());  // also: rank 0 has prepared
  if (all.front().error[0] != '\0') {
    reason = "rank 0: " + std::string(all.front().error);
    return nullptr;
  }
  std::vector<PoolMember> members;
  for (const Introduction& introduction : all) members.push_back(introduction.member);
  pool->introduce(std::move(members));
  std::vector<std::size_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  return join(std::move(pool), all.front().begin, ranks, static_cast<std::size_t>(bootstrap.rank()),
              bootstrap.names());
}

PoolPart* NodeGroup::reserve(Pool& pool, std::size_t ranks, const NodeOptions& wanted) {
  const NodeOptions options = usable(wanted, ranks);
  PoolPart* part = pool.take(Layout(ranks, options).bytes);
  if (part == nullptr) return nullptr;
  try {
    populate(pool, *part, ranks, options, PoolPart::Real::kBeginnings);
  } catch (const TransportError&) {
    pool.free(*part);
    return nullptr;
  }
  prepare(pool, *part, ranks, options);
  return part;
}

std::unique_ptr<NodeGroup> NodeGroup::join(std::shared_ptr<Pool> pool, std::size_t begin,
                                           std::span<const std::size_t> members, std::size_t rank,
                                           RankNames names) {
  allow_barriers();
  std::vector<ProcessId> processes;
  std::vector<Cores> cores;
  for (const std::size_t member : members) {
    processes.push_back(pool->member(member).process);
    cores.push_back(pool->member(member).cores);
  }
  const auto& agreed = reinterpret_cast<const Header*>(pool->at(begin))->options;
  const bool spins = each_has_a_core(cores, std::max(members.size(), agreed.ranks_on_host));
  return std::unique_ptr<NodeGroup>(
      new NodeGroup(std::move(pool), begin, rank, std::move(processes), std::move(names), spins));
}

// Makes so much of a part memory, unless it is.
void NodeGroup::populate(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                         PoolPart::Real wanted) {
  if (part.real >= wanted) return;
  const Layout layout(ranks, options);
  if (wanted == PoolPart::Real::kAll) {
    pool.populate(part, 0, layout.bytes);
  } else {
    const NodeOptions beginning = options.beginning(ranks);
    pool.populate(part, 0, layout.slots);
    for (std::size_t slot = 0; slot < 2 * ranks; ++slot) {
      pool.populate(part, layout.slots + slot * options.slot_bytes, beginning.slot_bytes);
    }
    for (std::size_t chunk = 0; chunk < ranks * options.depth; ++chunk) {
      pool.populate(part, layout.chunks + chunk * options.chunk_bytes, beginning.chunk_bytes);
    }
  }
  part.real = wanted;
}

// As if the operation before the first had just ended. The part may have been another group's.
void NodeGroup::prepare(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options) {
  std::byte* const memory = pool.at(part.begin);
  const Layout layout(ranks, options);
  std::memset(memory, 0, layout.slots);
  auto& header = *reinterpret_cast<Header*>(memory);
  auto* states = reinterpret_cast<RankState*>(memory + layout.states);
  const std::uint64_t last = options.first_operation - 1;
  header.options = options;
  header.whole_from = part.real == PoolPart::Real::kAll ? last : Header::kNotYet;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    states[rank].announcement[last & 1].head.store(last << 32, std::memory_order_relaxed);
    states[rank].announcement[~last & 1].head.store((last - 1) << 32, std::memory_order_relaxed);
  }
  header.users.store(static_cast<std::uint32_t>(ranks), std::memory_order_release);
  pool.hand_over(part);
}

NodeGroup::NodeGroup(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank,
                     std::vector<ProcessId> processes, RankNames names, bool spins)
    : pool_(std::move(pool)),
      memory_(pool_->at(begin)),
      part_(rank == 0 ? pool_->part_at(begin) : nullptr),
      rank_(rank),
      size_(processes.size()),
      processes_(std::move(processes)),
      header_(*reinterpret_cast<Header*>(memory_)),
      options_(header_.options),
      usable_(options_.beginning(size_)),
      whole_(false),
      waiter_(spins, *this,
              spins && !header_.options.sleeps ? &header_.sleepers_expected : nullptr),
      operation_(options_.first_operation - 1),
      operands_(size_),
      names_(std::move(names)) {
  const Layout layout(size_, options_);
  states_ = reinterpret_cast<RankState*>(memory_ + layout.states);
  slots_ = memory_ + layout.slots;
  chunks_ = memory_ + layout.chunks;
  use_whole_if_said(operation_);
  led_ = usable_;
}

NodeGroup::~NodeGroup() {
  // A forked child that drops its copy of this object has not left the group.
  if (processes_[rank_].pid != getpid()) return;
  states_[rank_].departed.store(1, std::memory_order_release);
  ring(states_[rank_].bell);
  header_.users.fetch_sub(1, std::memory_order_acq_rel);  // nothing here is touched after this
}

void NodeGroup::enter() {
  glance();
  if (catch_up_) [[unlikely]] {
    await_peers(operation_);
    catch_up_ = false;
  }
  if (!whole_) [[unlikely]] {
    use_whole_if_said(operation_);
  }
  ++operation_;
}

void NodeGroup::make_whole() noexcept {
  if (std::exchange(tried_, true)) return;
  try {
    populate(*pool_, *part_, size_, options_, PoolPart::Real::kAll);
    header_.whole_from.store(operation_, std::memory_order_release);
  } catch (const TransportError&) {
    // The data go on in small chunks: slower, and right.
  }
}

void NodeGroup::use_whole_if_said(std::uint64_t until) {
  if (header_.whole_from.load(std::memory_order_acquire) > until) return;
  usable_ = options_;
  whole_ = true;
}

std::uint64_t NodeGroup::head(const Signature& signature) const {
  return operation_ << 32 | hash_of(signature.detail);
}

void NodeGroup::announce(const Signature& signature, const void* data, std::size_t bytes) {
  RankState& state = states_[rank_];
  Announcement& mine = announcement(rank_);
  state.particulars[operation_ & 1].detail = signature.detail;
  if (arrival_ns_ != 0) [[unlikely]] {
    state.particulars[operation_ & 1].arrival_ns = std::exchange(arrival_ns_, 0);
    state.particulars[operation_ & 1].arrival_of = operation_;
  }
  mine.what = signature.what;
  copy_few(mine.data, static_cast<const std::byte*>(data), bytes);
  waiter_.publish(mine.head, head(signature), state.bell);
  post_begun(operation_, signature);  // afterwards: the peers need not wait for it
}

void NodeGroup::await_announcements(const Signature& signature) {
  const std::uint64_t agreed = head(signature);
  bool same = true;
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Announcement& theirs = announcement(peer);
    waiter_.wait(announcement_of(peer, operation_));
    same &= theirs.head.load(std::memory_order_relaxed) == agreed && theirs.what == signature.what;
  }
  if (!same) [[unlikely]] {
    throw_disagreement(signature);
  }
}

void NodeGroup::await_peers(std::uint64_t operation) {
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer != rank_) waiter_.wait(announcement_of(peer, operation));
  }
}

std::optional<Awaited> NodeGroup::missing_announcement(std::uint64_t operation) const {
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Awaited awaited = announcement_of(peer, operation);
    if (!awaited.reached()) return awaited;
  }
  return std::nullopt;
}

Signature NodeGroup::announced(std::size_t rank) const {
  return {announcement(rank).what, states_[rank].particulars[operation_ & 1].detail};
}

// Not all announcements are equal, so every rank sees one that differs from its own. An aborted one
// explains most.
void NodeGroup::throw_disagreement(const Signature& signature) const {
  for (std::size_t peer = 0; peer < size_; ++peer) {
    const bool refused = announced(peer).what >> 60 == static_cast<std::uint64_t>(Kind::kAborted);
    if (peer == rank_ || !refused) continue;  // who leads has not announced yet
    throw Disagreement(states_[peer].particulars[operation_ & 1].reason);
  }
  std::size_t other = 0;
  while (other == rank_ || announced(other) == signature) ++other;
  throw Disagreement(
      disagreement_text(names_.number(rank_), signature, names_.number(other), announced(other)));
}

void NodeGroup::announce_refusal(std::string_view text) {
  has_disagreed_ = true;
  set_text(states_[rank_].particulars[operation_ & 1].reason, text);
  announce({make_signature(Kind::kAborted, Op::kSum, DType::kUInt8, 0).what, 0}, nullptr, 0);
  catch_up_ = true;
}

void NodeGroup::abort(std::string_view reason, Poll* poll) {
  operate(poll, [&] { announce_refusal(refused_text(reason)); });
}

std::string NodeGroup::missing() const {
  std::string absent, busy;
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || finished(peer) >= operation_) continue;
    const bool here = is_here(peer);
    std::string& list = here ? busy : absent;
    const std::string left = ", last left operation " + std::to_string(finished(peer));
    list += (list.empty() ? "" : ", ") +
            names_.of(peer, process_text(processes_[peer]) + ", " + state_text(processes_[peer]) +
                                (here ? "" : left));
  }
  return "operation " + std::to_string(operation_) + " (" + describe_with_bytes(announced(rank_)) +
         ") among " + std::to_string(size_) +
         " ranks; missing: " + (absent.empty() ? "none, but unfinished: " + busy : absent);
}

WaitRecord NodeGroup::wait_record() const {
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

bool NodeGroup::is_here(std::size_t peer) const {
  return has_reached(announcement(peer).head, operation_ << 32) ||
         states_[peer].leading.load(std::memory_order_relaxed) == operation_;
}

bool NodeGroup::is_first_to_wait() const {
  for (std::size_t peer = 0; peer < rank_; ++peer) {
    const bool waits = is_here(peer) && finished(peer) < operation_;
    if (waits && is_going(processes_[peer])) return false;
  }
  return true;
}

void NodeGroup::step_done(std::uint64_t step) {
  waiter_.publish(states_[rank_].progress, steps_ + step, states_[rank_].bell);
}

void* NodeGroup::frame(std::size_t bytes) {
  const std::size_t units = (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
  if (units > frame_.size()) frame_.resize(units);
  return frame_.data();
}

void NodeGroup::glance() {
  if (header_.poison.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    throw_poisoned();
  }
}

// A rank may free its group or end as soon as it has left the last operation, while others are
// still in it: they need nothing more from that rank.
void NodeGroup::check_awaited() {
  for (std::size_t peer = 0; peer < size_; ++peer) {
    const std::atomic<std::uint64_t>& finished = states_[peer].finished;
    if (finished.load(std::memory_order_acquire) == operation_) continue;
    try {
      check_peer(peer);
    } catch (const PeerLost&) {
      // It may have finished and left between the two looks.
      if (finished.load(std::memory_order_acquire) != operation_) throw;
    }
  }
}

void NodeGroup::check_peers() const {
  if (header_.poison.load(std::memory_order_relaxed) != 0) throw_poisoned();
  for (std::size_t peer = 0; peer < size_; ++peer) check_peer(peer);
}

void NodeGroup::check_peer(std::size_t peer) const {
  if (peer == rank_) return;
  const ProcessId& process = processes_[peer];
  const bool same = process == processes_[rank_];
  const ShutdownRecord* shutdown_record = same ? nullptr : shutdown_record_of(process);
  if (shutdown_record == nullptr && departed_long_ago(peer)) {
    throw PeerLost(names_.of(peer) + " has freed this communicator while others still use it",
                   true);
  }
  if (shutdown_record == nullptr && (same || is_alive(process))) return;
  // It may have left because of an earlier failure, which it has written down before.
  if (header_.poison.load(std::memory_order_acquire) != 0) throw_poisoned();
  throw PeerLost(names_.of(peer, process_text(process)) + " " +
                     (shutdown_record != nullptr ? shutdown_record->reason : "has ended"),
                 true);
}

// A program that ends lets go of its communicators a moment before it can say that it ends.
bool NodeGroup::departed_long_ago(std::size_t peer) const {
  constexpr std::uint64_t kMomentNs = 1'000'000'000;
  if (states_[peer].departed.load(std::memory_order_acquire) == 0) return false;
  if (departed_ns_ == 0) departed_ns_ = now_ns();
  return now_ns() - departed_ns_ >= kMomentNs;
}

void NodeGroup::fail(const FailureReport& report) noexcept {
  peer_arrays_.clear();  // no operation follows, and a dead rank's memory is there as long as these
  if (header_.poison.load(std::memory_order_relaxed) != 0) return;
  try {
    poison({report.kind,
            report.text + " (found by " + own_name() + " in operation " +
                std::to_string(operation_) + ")",
            report.id});
  } catch (const std::bad_alloc&) {
    poison(report);
  }
}

void NodeGroup::poison(const FailureReport& report) noexcept {
  process_poisoned.store(true, std::memory_order_relaxed);
  std::uint32_t sound = 0;
  if (!header_.poison.compare_exchange_strong(sound, 1, std::memory_order_acq_rel)) return;
  header_.failure = report.kind;
  header_.failure_id = report.id;
  set_text(header_.reason, report.text);
  header_.poison.store(2, std::memory_order_release);
  for (std::size_t rank = 0; rank < size_; ++rank) ring(states_[rank].bell);
}

void NodeGroup::throw_poisoned() const {
  // It takes a moment to write the reason; who began to may have died over it.
  for (int look = 0; look < 1000 && header_.poison.load(std::memory_order_acquire) != 2; ++look) {
    usleep(100);
  }
  if (header_.poison.load(std::memory_order_acquire) != 2) {
    throw_report({Failure::kPeerLost, "a rank ended while it told the others why it failed"}, true);
  }
  throw_report({header_.failure, header_.reason, header_.failure_id}, true);
}

}  // namespace gradred
