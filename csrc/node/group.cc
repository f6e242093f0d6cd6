#include "node/group.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "node/copy.h"
#include "node/neighbours.h"

namespace gradred {
namespace {

// What each rank tells the others when the group is made.
struct Introduction {
  ProcessId process;
  Cores cores;
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
  auto segment = Segment::create(bootstrap, Layout(size, options).bytes, reason);
  if (segment == nullptr) return nullptr;
  if (bootstrap.rank() == 0) prepare(*segment, size, options);

  allow_barriers();

  const Introduction mine{this_process(), cores_of_this_thread()};
  std::vector<Introduction> all(size);
  bootstrap.allgather(&mine, sizeof mine, all.data());  // also: rank 0 has prepared
  std::vector<ProcessId> processes;
  std::vector<Cores> cores;
  for (const Introduction& introduction : all) {
    processes.push_back(introduction.process);
    cores.push_back(introduction.cores);
  }
  const auto& agreed = reinterpret_cast<const Header*>(segment->data())->options;
  const bool spins = each_has_a_core(cores, std::max(size, agreed.ranks_on_host));
  const auto rank = static_cast<std::size_t>(bootstrap.rank());
  return std::unique_ptr<NodeGroup>(
      new NodeGroup(std::move(segment), rank, std::move(processes), bootstrap.names(), spins));
}

// As if the operation before the first had just ended.
void NodeGroup::prepare(Segment& segment, std::size_t ranks, const NodeOptions& options) {
  reinterpret_cast<Header*>(segment.data())->options = options;
  auto* states = reinterpret_cast<RankState*>(segment.data() + Layout(ranks, options).states);
  const std::uint64_t last = options.first_operation - 1;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    states[rank].announcement[last & 1].head.store(last << 32, std::memory_order_relaxed);
    states[rank].announcement[~last & 1].head.store((last - 1) << 32, std::memory_order_relaxed);
  }
}

NodeGroup::NodeGroup(std::shared_ptr<Segment> segment, std::size_t rank,
                     std::vector<ProcessId> processes, RankNames names, bool spins)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(processes.size()),
      processes_(std::move(processes)),
      header_(*reinterpret_cast<Header*>(segment_->data())),
      options_(header_.options),
      waiter_(spins, *this, spins ? &header_.sleepers_expected : nullptr),
      operation_(options_.first_operation - 1),
      operands_(size_),
      names_(std::move(names)) {
  for (ProcessId& process : processes_) {
    // One without a status file is believed, since it sees this memory. Of one that has another
    // number here than it says, /proc tells nothing.
    if (process.token != 0 && !meet(process)) process.start_time = 0;
  }
  const Layout layout(size_, options_);
  states_ = reinterpret_cast<RankState*>(segment_->data() + layout.states);
  slots_ = segment_->data() + layout.slots;
  chunks_ = segment_->data() + layout.chunks;
}

NodeGroup::~NodeGroup() {
  // A forked child that drops its copy of this object has not left the group.
  if (processes_[rank_].pid != getpid()) return;
  states_[rank_].departed.store(1, std::memory_order_release);
  ring(states_[rank_].bell);
}

void NodeGroup::enter() {
  glance();
  if (catch_up_) [[unlikely]] {
    await_peers(operation_);
    catch_up_ = false;
  }
  ++operation_;
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
    if (announced(peer).what >> 60 != static_cast<std::uint64_t>(Kind::kAborted)) continue;
    throw Disagreement(names_.of(peer) + " refused its arguments: " +
                       states_[peer].particulars[operation_ & 1].reason);
  }
  std::size_t other = 0;
  while (other == rank_ || announced(other) == signature) ++other;
  throw Disagreement(disagreement_text(static_cast<int>(rank_), signature, static_cast<int>(other),
                                       announced(other)));
}

void NodeGroup::announce_refusal(std::string_view reason) {
  has_disagreed_ = true;
  set_text(states_[rank_].particulars[operation_ & 1].reason, reason);
  announce({make_signature(Kind::kAborted, Op::kSum, DType::kUInt8, 0).what, 0}, nullptr, 0);
  catch_up_ = true;
}

void NodeGroup::abort(std::string_view reason, Poll* poll) {
  operate(poll, [&] { announce_refusal(reason); });
}

std::string NodeGroup::missing() const {
  std::string absent, busy;
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || finished(peer) >= operation_) continue;
    const bool here = has_reached(announcement(peer).head, operation_ << 32);
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

bool NodeGroup::is_first_to_wait() const {
  for (std::size_t peer = 0; peer < rank_; ++peer) {
    const bool waits =
        has_reached(announcement(peer).head, operation_ << 32) && finished(peer) < operation_;
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
  const Farewell* farewell = same ? nullptr : farewell_of(process);
  if (farewell == nullptr && departed_long_ago(peer)) {
    throw PeerLost(names_.of(peer) + " has freed this communicator while others still use it",
                   true);
  }
  if (farewell == nullptr && (same || is_alive(process))) return;
  // It may have left because of an earlier failure, which it has written down before.
  if (header_.poison.load(std::memory_order_acquire) != 0) throw_poisoned();
  throw PeerLost(names_.of(peer, process_text(process)) + " " +
                     (farewell != nullptr ? farewell->reason : "has ended"),
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
  if (header_.poison.load(std::memory_order_relaxed) != 0) return;
  try {
    poison({report.kind, report.text + " (found by " + own_name() + " in operation " +
                             std::to_string(operation_) + ")"});
  } catch (const std::bad_alloc&) {
    poison(report);
  }
}

void NodeGroup::poison(const FailureReport& report) noexcept {
  process_poisoned.store(true, std::memory_order_relaxed);
  std::uint32_t sound = 0;
  if (!header_.poison.compare_exchange_strong(sound, 1, std::memory_order_acq_rel)) return;
  header_.failure = report.kind;
  set_text(header_.reason, report.text);
  header_.poison.store(2, std::memory_order_release);
  for (std::size_t rank = 0; rank < size_; ++rank) ring(states_[rank].bell);
}

void NodeGroup::throw_poisoned() const {
  // It takes a moment to write the reason; who began to may have died over it.
  for (int look = 0; look < 1000 && header_.poison.load(std::memory_order_acquire) != 2; ++look) {
    usleep(100);
  }
  const bool written = header_.poison.load(std::memory_order_acquire) == 2;
  throw_report({written ? header_.failure : Failure::kPeerLost,
                written ? header_.reason : "a rank ended while it told the others why it failed"},
               true);
}

}  // namespace gradred
