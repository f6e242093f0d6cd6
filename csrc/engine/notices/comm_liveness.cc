#include "engine/notices/comm_liveness.h"

#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/errors.h"
#include "engine/notices/operation_log.h"
#include "engine/notices/registry.h"
#include "liveness/failure_board.h"
#include "liveness/first_calls.h"
#include "liveness/local_peers.h"
#include "liveness/status_page.h"
#include "liveness/supervisor.h"
#include "mpi/world_ranks.h"
#include "node/group/group.h"

namespace gradred {
namespace {

std::string over_messages(std::uint64_t number) {
  return "operation " + std::to_string(number) + " over messages";
}

}  // namespace

void CommLiveness::open(Found found) {
  found_ = std::move(found);
  opened_.store(true, std::memory_order_release);
}

void CommLiveness::call_ranks(std::vector<int> called) {
  if (opened()) return found_.names.call(std::move(called));
  called_ = std::move(called);
}

RankNames CommLiveness::names() const {
  if (opened()) return found_.names;
  RankNames names = freed() ? RankNames() : RankNames(mpi::world_ranks(comm_));
  names.call(called_);
  return names;
}

const LocalPeers& CommLiveness::local_peers() const {
  static const LocalPeers none;
  return opened() ? found_.local_peers : none;
}

// ---- what is known of this communicator ---------------------------------------------------------

bool CommLiveness::failed() const {
  if (log_.failure()) return true;
  if (!opened()) return false;
  const NodeGroup* const local = found_.node != nullptr ? found_.node : found_.host;
  return local != nullptr && local->poisoned();
}

void CommLiveness::receive_notices() {
  if (opened() && found_.duplicate != 0) log_.progress();
}

// While this rank did something else for a while, peers may have given up and sent notices.
void CommLiveness::receive_after_pause() {
  constexpr std::uint64_t kPauseNs = 1'000'000;
  constexpr int kLooks = 4;  // the MPI takes a message in at one look and shows it at the next
  const std::uint64_t now = now_ns();
  if (now - received_ns_.exchange(now, std::memory_order_relaxed) < kPauseNs) return;
  for (int look = 0; look < kLooks; ++look) log_.progress();
}

void CommLiveness::fail(const std::exception_ptr& thrown) noexcept {
  process_poisoned.store(true, std::memory_order_relaxed);
  try {
    FailureReport report = first_report_of(thrown);
    report.text += " (found by " + own_name() + ")";
    note_failure(report);
    if (opened() && found_.host != nullptr) found_.host->poison(report);
    // A message to a rank that has just ended would crash this process (see below).
    if (launcher_passes_failures_on()) {
      log_.note_failure(report);
      return tell_leaving(true, report);
    }
    log_.fail(report,
              any_rank_failed() ? failures_among(names().world_ranks()) : std::vector<int>());
  } catch (const std::exception&) {
    // The peers cannot be notified: they find out by themselves.
  }
}

void CommLiveness::throw_if_failed() {
  if (const auto failure = log_.failure()) throw_report(*failure, may_shrink(), names().carries());
  if (!opened() || found_.host == nullptr || !found_.host->poisoned()) return;
  try {  // a peer of this host wrote the failure before it sent it
    found_.host->check_peers();
  } catch (const PeerLost&) {  // over several hosts nothing can be shrunk
    throw_report(first_report_of(std::current_exception()), false, names().carries());
  }
}

// ---- what the launcher reports ------------------------------------------------------------------

// A send to a rank that has ended without MPI_Finalize ends this process as well: MPICH 5 crashes,
// and Open MPI 5 aborts, the latter in any call. So the launcher's report is checked before that.
// No rank can have completed a call to which this rank has contributed nothing, if all ranks depend
// on all.
void CommLiveness::throw_if_failed_before(Kind kind, std::uint64_t number) {
  if (!needs_all_ranks(kind) || !any_rank_failed()) return;
  throw_if_failed_before(over_messages(number));
}

void CommLiveness::throw_if_failed_before(std::string_view call) {
  const auto failure = failure_before(call);
  if (!failure) return;
  log_.note_failure(*failure);
  throw_if_failed();
}

// For ranks that have failed before this rank came to a call.
std::optional<FailureReport> CommLiveness::failure_before(std::string_view call) const {
  if (!any_rank_failed()) return std::nullopt;
  const RankNames names = this->names();
  const auto failure = failure_among(names.world_ranks());
  if (!failure) return std::nullopt;
  if (auto report = report_among(names.world_ranks())) return report;
  return FailureReport{Failure::kPeerLost, names.of(failure->first) + " " + failure->second +
                                               " before " + own_name() + " came to " +
                                               std::string(call)};
}

// ---- ranks that have ended or left --------------------------------------------------------------

std::optional<std::string> CommLiveness::find_lost() const {
  if (!opened()) return std::nullopt;
  if (auto ended = ended_among(found_.local_peers, found_.names)) return ended;
  return found_.duplicate != 0 ? lost_rank(found_.duplicate, found_.names) : std::nullopt;
}

void CommLiveness::throw_if_lost(std::string_view where, std::optional<std::uint64_t> number) {
  const auto lost = lost_.look([&] {
    if (number) throw_if_left(*number);
    return find_lost();
  });
  if (!lost) return;
  const std::string waits = where.empty() && number ? over_messages(*number) : std::string(where);
  throw PeerLost(*lost + " while " + own_name() + " waits in " + waits, may_shrink());
}

// Throws if a peer of this host begins no operation any more, and has not begun this one.
void CommLiveness::throw_if_left(std::uint64_t number) const {
  for (const auto& [rank, process] : local_peers()) {
    const ShutdownRecord* said = shutdown_record_of(process);
    if (said == nullptr) continue;
    for (std::uint32_t i = 0; i < said->known; ++i) {
      const auto [communicator, operations] = said->begun[i];
      if (communicator != found_.key || number < operations) continue;
      throw PeerLost(names().of(rank, process_text(process)) + " " + said->reason + "; " +
                         own_name() + " waits in " + over_messages(number),
                     may_shrink());
    }
  }
}

// The MPI reports an error a moment before the system reports that the process has ended.
void CommLiveness::throw_if_peer_ended(const std::string& error) {
  if (log_.failure()) return;
  try {
    log_.progress();  // a peer that has left may have sent the reason
  } catch (const TransportError&) {
    // The MPI's error is being looked into already.
  }
  throw_if_failed();
  for (int look = 0; look < 30; ++look) {
    if (const auto lost = find_lost()) throw PeerLost(*lost + ": " + error, may_shrink());
    usleep(10'000);
  }
}

// ---- operations that the MPI carries out --------------------------------------------------------

std::uint64_t CommLiveness::count_on_mpi() {
  if (group_key_ == 0) group_key_ = Registry::get().group_key(comm_);
  return Registry::get().count_on_mpi(group_key_);
}

void CommLiveness::throw_if_lost_on_mpi(LostPeers& lost, std::uint64_t begun) const {
  if (freed()) return;
  const auto found = lost.look([&]() -> std::optional<std::string> {
    const RankNames names = this->names();
    if (auto ended = lost_rank(comm_, names)) return ended;
    return left_before(known_local_peers(comm_), names, group_key_, begun);
  });
  if (!found) return;
  throw PeerLost(*found + " while " + own_name() + " waits in " + std::string(kCarriedByMpi),
                 may_shrink());
}

// ---- operations over messages -------------------------------------------------------------------

// Compares this rank with the ranks of its host only.
bool CommLiveness::is_first_to_wait(std::uint64_t number) const {
  const std::vector<int> waiting = log_.waiting(number);
  return std::ranges::none_of(local_peers(), [&](const auto& peer) {
    const auto& [rank, process] = peer;
    return rank < rank_ && std::ranges::find(waiting, rank) != waiting.end() && is_going(process);
  });
}

WaitRecord CommLiveness::wait_record(std::uint64_t number, const Signature& signature) const {
  WaitRecord found{.state = WaitRecord::State::kOverMessages,
                   .ranks = static_cast<std::uint32_t>(size_),
                   .operation = number,
                   .what = signature.what};
  const std::vector<int> waiting = log_.waiting(number);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || std::ranges::find(waiting, rank) != waiting.end()) continue;
    found.add_missing(static_cast<std::size_t>(rank));
  }
  return found;
}

std::string CommLiveness::waits_for(std::uint64_t number, const Signature& signature) const {
  const std::vector<int> waiting = log_.waiting(number);
  const RankNames names = this->names();
  const LocalPeers& near = local_peers();
  std::string here, silent;
  for (const int rank : waiting) {
    here += (here.empty() ? "; waiting too: " : ", ") + names.of(rank);
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || std::ranges::find(waiting, rank) != waiting.end()) continue;
    const auto known = std::ranges::find(near, rank, &LocalPeers::value_type::first);
    const std::string details = known == near.end() ? "" : doing_text(known->second);
    silent += (silent.empty() ? "; no message from: " : ", ") + names.of(rank, details);
  }
  const auto refused = log_.refusal(number);
  const std::string why = refused ? ", which ends in an error for all: " + *refused : "";
  return over_messages(number) + " (" + describe_with_bytes(signature) + ")" + among(size_) + why +
         here + silent;
}

}  // namespace gradred
