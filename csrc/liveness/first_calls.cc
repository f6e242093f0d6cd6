#include "liveness/first_calls.h"

#include <algorithm>
#include <string>
#include <vector>

#include "liveness/local_peers.h"

namespace gradred {
namespace {

// The known peers that do not publish that they wait in this call.
LocalPeers missing_peers(mpi::Handle comm, const WaitRecord& call) {
  LocalPeers peers = known_local_peers(comm);
  std::erase_if(peers, [&](const auto& peer) {
    const auto theirs = waits_in(peer.second);
    return theirs && theirs->is_call_of(call);
  });
  return peers;
}

// What a missing peer does. If its first call on a communicator of this size is of another kind
// than this rank's, it may never come.
std::string state_of_missed(const ProcessId& process, std::uint32_t ranks) {
  const auto theirs = waits_in(process);
  if (!theirs) return state_text(process);
  if (theirs->ranks == ranks && theirs->state == WaitRecord::State::kFirstCall) {
    return "whose first call blocks";
  }
  if (theirs->ranks == ranks && theirs->state == WaitRecord::State::kOnMpi) {
    return "whose first call does not block";
  }
  return "waits in another call of gradred";
}

}  // namespace

std::string among(int size) { return " among " + std::to_string(size) + " ranks"; }

bool is_first_to_wait(const LocalPeers& peers, int rank, const WaitRecord& call) {
  return std::ranges::none_of(peers, [&](const auto& peer) {
    const auto& [other, process] = peer;
    if (other >= rank || !is_going(process)) return false;
    const auto theirs = waits_in(process);
    return theirs && theirs->is_call_of(call);
  });
}

WaitRecord UnnumberedCall::record() const {
  WaitRecord found = call;
  for (const auto& [rank, process] : missing_peers(comm, call)) {
    found.add_missing(static_cast<std::size_t>(rank));
  }
  return found;
}

std::string UnnumberedCall::missing() const {
  std::string missing;
  for (const auto& [rank, process] : missing_peers(comm, call)) {
    missing += (missing.empty() ? "; missing: " : ", ") +
               names.of(rank, process_text(process) + ", " + state_of_missed(process, call.ranks));
  }
  const std::size_t unknown = call.ranks - 1 - known_local_peers(comm).size();
  if (unknown != 0) missing += "; ranks of whom nothing is known: " + std::to_string(unknown);
  return missing.empty() ? "; all wait in such a call: perhaps on different communicators"
                         : missing;
}

UnnumberedCall FirstCall::unnumbered() const {
  using State = WaitRecord::State;
  const State state = kind == Kind::kBlocks ? State::kFirstCall : State::kDuplicate;
  return {comm, names, {.state = state, .ranks = static_cast<std::uint32_t>(size)}};
}

std::string FirstCall::what() const {
  const std::string ranks = std::to_string(size) + " ranks, which all of them must ";
  return kind == Kind::kBlocks ? "the first call on a communicator of " + ranks + "make"
                               : "Dup of a communicator of " + ranks + "call";
}

std::string FirstCall::waiter() const { return names.of(rank); }

}  // namespace gradred
