#include "node/group/shrinking.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/errors.h"
#include "base/text.h"
#include "liveness/local_peers.h"

namespace gradred {
namespace {

constexpr std::uint64_t kHere = 1;  // step by which a rank publishes that it takes part
constexpr std::size_t kBits = 64;

// Thrown if the awaited rank has ended or freed its communicator, so that no rank waits for it.
struct HasLeft {};

// Also true for a process that still waits in MPI_Finalize.
bool has_ended(const ProcessId& process) {
  return shutdown_record_of(process) != nullptr || !is_alive(process);
}

}  // namespace

Shrinking::Shrinking(const NodeGroup& group)
    : group_(group),
      part_(group.part()),
      rank_(static_cast<std::size_t>(group.rank())),
      size_(static_cast<std::size_t>(group.size())),
      waiter_(group.spins(), *this),
      awaited_(size_) {
  if (size_ > ShrinkState::kMostRanks) {
    throw UsageError("a communicator of more than " + std::to_string(ShrinkState::kMostRanks) +
                     " ranks cannot be shrunk");
  }
}

std::unique_ptr<NodeGroup> Shrinking::run(Poll* poll) {
  part_.allow_shrinking();
  waiter_.use(poll);
  members_.clear();
  attempt_ = ended_so_far().last() + 1;
  std::unique_ptr<NodeGroup> made;
  try {
    attempt(made);
    end(true);
    throw_failed(ended_so_far());
  } catch (const Error&) {
    give_up();
    // If success is recorded, this rank had done its last step and needs no other rank.
    if (made == nullptr || !ended_so_far().well(attempt_)) {
      process_poisoned = true;
      throw;
    }
  } catch (...) {  // an exception of a signal handler must reach the program
    give_up();
    process_poisoned = true;
    throw;
  }
  if (members_.size() < size_ && !ended().empty()) process_poisoned = true;
  return made;
}

// Called in an exception handler: the exception ends the attempt, unless it has ended already.
void Shrinking::give_up() {
  const FailureReport report = report_of(std::current_exception());
  ShrinkState& mine = state(rank_);
  if (!ended_so_far().include(attempt_)) {
    mine.failure = report.kind;
    set_text(mine.reason, report.text);
    end(false);
  }
}

void Shrinking::attempt(std::unique_ptr<NodeGroup>& made) {
  publish(kHere);
  await_all();
  decide();
  NodeOptions options = part_.options();
  const std::size_t lost = size_ - members_.size();
  options.ranks_on_host -= std::min(options.ranks_on_host, lost);
  std::string reason;
  made = NodeGroup::create(*this, options, reason);
  if (made == nullptr) {
    throw TransportError("the ranks that are left get no shared memory: " + reason);
  }
  barrier();  // after it, all have the group
}

// A rank that neither arrives nor ends makes this rank wait as long as Poll allows.
void Shrinking::await_all() {
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || has_done(peer, kHere) || has_left(peer)) continue;
    awaited_ = peer;
    try {
      waiter_.wait({&state(peer).steps, attempt_ << 32 | kHere, &part_.state(peer).bell});
    } catch (const HasLeft&) {
    }
  }
  awaited_ = size_;
  glance();
}

void Shrinking::decide() {
  ShrinkState& mine = state(rank_);
  std::memset(mine.members, 0, sizeof mine.members);
  for (std::size_t rank = 0; rank < size_; ++rank) {
    const bool alive = rank == rank_ || (has_done(rank, kHere) && !has_left(rank));
    if (alive) mine.members[rank / kBits] |= std::uint64_t{1} << rank % kBits;
  }
  std::atomic<std::uint64_t>& decided = part_.header().shrink_decided;
  std::uint64_t seen = decided.load(std::memory_order_acquire);
  while (seen >> 32 < attempt_ &&
         !decided.compare_exchange_weak(seen, attempt_ << 32 | rank_, std::memory_order_acq_rel)) {
  }
  const std::size_t by = decided.load(std::memory_order_acquire) & 0xffffffff;
  const auto counted = [&](std::size_t rank) {
    return (state(by).members[rank / kBits] >> rank % kBits & 1) != 0;
  };
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (rank == rank_) new_rank_ = members_.size();
    if (counted(rank)) members_.push_back(rank);
  }
  if (!counted(rank_)) {
    throw TransportError(group_.names().of(by) + " takes this process for ended");
  }
}

void Shrinking::allgather(const void* mine, std::size_t bytes, void* all) {
  check(bytes <= ShrinkState::kCellBytes, "a cell holds what a rank gives");
  const std::uint64_t step = step_ + 1;
  const auto cell = [&](std::size_t rank) { return state(rank).cells[step & 1]; };
  if (bytes > 0) std::memcpy(cell(rank_), mine, bytes);
  publish(step);
  await_members();
  auto* target = static_cast<std::byte*>(all);
  for (std::size_t i = 0; bytes > 0 && i < members_.size(); ++i) {
    std::memcpy(target + i * bytes, cell(members_[i]), bytes);
  }
}

void Shrinking::barrier() { allgather(nullptr, 0, nullptr); }

RankNames Shrinking::names() const {
  return group_.names().renumbered({members_.begin(), members_.end()});
}

void Shrinking::publish(std::uint64_t step) {
  step_ = step;
  waiter_.publish(state(rank_).steps, attempt_ << 32 | step, part_.state(rank_).bell);
}

void Shrinking::await_members() {
  for (const std::size_t member : members_) {
    waiter_.wait({&state(member).steps, attempt_ << 32 | step_, &part_.state(member).bell});
  }
  glance();  // a member whose step is reached may be in the next attempt
}

// Records how the attempt has ended, unless another rank has done so.
void Shrinking::end(bool well) noexcept {
  std::uint64_t seen = ended_so_far().word;
  while (!AttemptsEnded{seen}.include(attempt_)) {
    const AttemptsEnded next = AttemptsEnded{seen}.and_next(rank_, well);
    if (part_.header().shrink_ended.compare_exchange_weak(seen, next.word,
                                                          std::memory_order_acq_rel)) {
      for (std::size_t rank = 0; rank < size_; ++rank) {
        ring(part_.state(rank).bell);
      }
    }
  }
}

AttemptsEnded Shrinking::ended_so_far() const {
  return {part_.header().shrink_ended.load(std::memory_order_acquire)};
}

// Throws the error that ended this attempt. Does nothing if the attempt has not ended or succeeded.
void Shrinking::throw_failed(AttemptsEnded ended) const {
  if (!ended.include(attempt_) || ended.well(attempt_)) return;
  if (ended.last() != attempt_) throw TransportError("the other ranks have given up shrinking");
  const ShrinkState& by = state(ended.by());
  const std::string text = by.reason;
  if (by.failure == Failure::kPeerLost) throw PeerLost(text, true);
  if (by.failure == Failure::kTimeout) throw TimeoutError(text);
  throw TransportError(group_.names().of(ended.by()) + " gave up shrinking: " + text);
}

void Shrinking::glance() { throw_failed(ended_so_far()); }

void Shrinking::check_awaited() {
  if (awaited_ < size_) {
    if (has_left(awaited_)) throw HasLeft{};
    return;
  }
  for (const std::size_t member : members_) {
    // The member may have ended right after its last step, and nothing more is needed from it.
    if (has_done(member, step_) || !has_left(member) || has_done(member, step_)) continue;
    throw PeerLost(
        described(member) +
            " has left while the ranks that live were shrinking the communicator; they may "
            "call shrink() again",
        true);
  }
}

bool Shrinking::has_done(std::size_t rank, std::uint64_t step) const {
  return has_reached(state(rank).steps, attempt_ << 32 | step);
}

bool Shrinking::has_left(std::size_t rank) const {
  const ProcessId& process = process_of(rank);
  if (part_.state(rank).departed.load(std::memory_order_acquire) != 0) return true;
  return !(process == process_of(rank_)) && has_ended(process);
}

std::vector<std::size_t> Shrinking::ended() const {
  std::vector<std::size_t> found;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    const bool member = std::ranges::find(members_, rank) != members_.end();
    if (!member && has_ended(process_of(rank))) found.push_back(rank);
  }
  return found;
}

std::string Shrinking::described(std::size_t rank) const {
  const ProcessId& process = process_of(rank);
  return group_.names().of(rank, doing_text(process));
}

// The living ranks for which this rank waits.
std::vector<std::size_t> Shrinking::absent() const {
  std::vector<std::size_t> found;
  if (awaited_ < size_) {
    for (std::size_t rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && !has_done(rank, kHere) && !has_left(rank)) found.push_back(rank);
    }
    return found;
  }
  std::ranges::copy_if(members_, std::back_inserter(found),
                       [&](std::size_t member) { return !has_done(member, step_); });
  return found;
}

std::string Shrinking::missing() const {
  std::string absent;
  for (const std::size_t rank : this->absent()) {
    absent += (absent.empty() ? "" : ", ") + described(rank);
  }
  if (awaited_ < size_) {
    return "shrink() of a communicator of " + std::to_string(size_) +
           " ranks, which every rank that lives has to call; missing: " + absent;
  }
  return "shrink() to " + std::to_string(members_.size()) + " ranks; missing: " + absent;
}

WaitRecord Shrinking::wait_record() const {
  WaitRecord found{.state = WaitRecord::State::kShrink, .ranks = static_cast<std::uint32_t>(size_)};
  for (const std::size_t rank : absent()) {
    found.add_missing(static_cast<std::size_t>(group_.names().number(rank)));
  }
  return found;
}

bool Shrinking::is_first_to_wait() const {
  for (std::size_t rank = 0; rank < rank_; ++rank) {
    if (has_done(rank, kHere) && !has_left(rank)) return false;
  }
  return true;
}

}  // namespace gradred
