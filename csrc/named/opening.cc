// Creates the board of each host group and connects the groups.
#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"
#include "comm/own_calls.h"
#include "comm/set_up/host_calls.h"
#include "comm/set_up/set_up_calls.h"
#include "named/named.h"

namespace gradred {
namespace {

constexpr std::uint64_t kConnectNs = 30'000'000'000;

// The host group of each rank. The ranks that share memory form one; group 0 is that of rank 0, and
// the others are numbered in the order of their first ranks.
std::vector<int> host_groups_of(const Communicator& comm) {
  std::vector<int> found(static_cast<std::size_t>(comm.size()));
  if (comm.node_path().serves_all()) return found;
  if (comm.place().hosts_share_memory()) return comm.place().topology.host_of;
  std::iota(found.begin(), found.end(), 0);
  return found;
}

std::vector<int> members_of(const std::vector<int>& host_group_of, int host_group) {
  std::vector<int> members;
  for (std::size_t rank = 0; rank < host_group_of.size(); ++rank) {
    if (host_group_of[rank] == host_group) members.push_back(static_cast<int>(rank));
  }
  return members;
}

// Waits until `side` has all its connections, or until the time limit. Returns whether it has them.
template <class Side>
bool met(SetUpCalls& calls, Side& side) {
  const std::uint64_t begin = now_ns();
  bool done = false;
  calls.wait([&] {
    done = side.advance();
    return done || now_ns() - begin > kConnectNs;
  });
  return done;
}

// Collective over all ranks. Returns the connections on the first rank of each host group, and
// nothing on the others.
std::vector<Socket> connect_host_groups(SetUpCalls& calls, std::size_t host_groups, int host_group,
                                        bool leads, std::string& reason) {
  std::unique_ptr<Accepting> accepting;
  Meeting meeting;
  if (calls.rank() == 0) {
    try {
      accepting = std::make_unique<Accepting>(host_groups);
      meeting = accepting->meeting();
    } catch (const std::exception& error) {
      reason = error.what();
    }
  }
  calls.bcast(&meeting, sizeof meeting);
  if (!leads || meeting.port == 0) return {};
  try {
    if (accepting != nullptr) {
      const bool all = met(calls, *accepting);
      if (!all) reason = std::to_string(accepting->missing()) + " of them have not come";
      std::vector<Socket> found = accepting->take();
      found.erase(found.begin());  // its own group has no connection
      return found;
    }
    Connecting connecting(meeting, static_cast<std::size_t>(host_group));
    if (!met(calls, connecting)) reason = "tried in vain: " + connecting.tried();
    std::vector<Socket> found;
    found.push_back(connecting.take());
    return found;
  } catch (const TransportError& error) {
    reason = error.what();
    return {};
  }
}

}  // namespace

std::shared_ptr<NamedOperations> NamedOperations::create(std::shared_ptr<Communicator> comm,
                                                         std::uint64_t most_fused_bytes,
                                                         WaitHook& hook) {
  comm->prepare(hook);
  // The communicator's own calls are not logged: their vectors depend on which operations happen to
  // be ready together, and some only exchange sizes.
  comm->log_no_results();
  const std::vector<int> host_group_of = host_groups_of(*comm);
  const int host_group = host_group_of[static_cast<std::size_t>(comm->rank())];
  const std::vector<int> members = members_of(host_group_of, host_group);
  if (comm->size() == 1) {
    return std::make_shared<NamedOperations>(std::move(comm), nullptr, members, most_fused_bytes);
  }
  const auto host_groups = static_cast<std::size_t>(std::ranges::max(host_group_of)) + 1;
  if (host_groups > 1 && !(comm->threads_drive() && comm->has_messages())) {
    throw UsageError(
        "named operations: the ranks share no memory (" + comm->place().why_no_memory +
        "), and between such ranks they need an MPI that takes calls from any thread. Ask it for "
        "MPI_THREAD_MULTIPLE, which mpi4py does by itself, and leave GRADRED_PROGRESS_THREAD on.");
  }
  SetUpCalls mpi_calls(comm->handle(), comm->rank(), comm->size(), hook, comm->liveness().names());
  OwnCalls own_calls(*comm, hook);
  Bootstrap& calls = comm->node_only() ? static_cast<Bootstrap&>(own_calls) : mpi_calls;
  const std::size_t bytes = Board::bytes(members.size());
  std::string reason;
  std::shared_ptr<Segment> segment;
  if (host_groups == 1) {
    segment = Segment::create(calls, Segment::kProofBytes + bytes, reason);
  } else if (members.size() > 1) {
    HostCalls host(mpi_calls, comm->path().transport(), members, comm->liveness().names());
    segment = Segment::create(host, Segment::kProofBytes + bytes, reason);
  }
  const bool leads = comm->rank() == members.front();
  std::shared_ptr<NamedOperations> made;
  if (reason.empty() && leads) {
    try {
      if (segment != nullptr) segment->populate(Segment::kProofBytes, bytes);
      made = std::make_shared<NamedOperations>(comm, segment, members, most_fused_bytes);
    } catch (const std::exception& error) {
      reason = error.what();
    }
  }
  throw_if_any(calls, reason, "named operations: there is no memory for their table",
               "Free memory, or raise the limit.");
  if (made == nullptr) {
    made = std::make_shared<NamedOperations>(comm, segment, members, most_fused_bytes);
  }
  if (host_groups == 1) return made;
  std::vector<Socket> sockets =
      connect_host_groups(mpi_calls, host_groups, host_group, leads, reason);
  throw_if_any(calls, reason, "the hosts cannot reach each other by TCP",
               "Let the hosts of a job reach that of its rank 0 on any port.");
  if (!leads) return made;
  std::vector<std::string> leaders;
  std::unique_ptr<Coordinator> coordinator;
  if (comm->rank() == 0) {
    for (std::size_t other = 1; other < host_groups; ++other) {
      leaders.push_back(
          comm->liveness().names().of(members_of(host_group_of, static_cast<int>(other)).front()));
    }
    coordinator =
        std::make_unique<Coordinator>(host_groups, most_fused_bytes, comm->liveness().names());
  } else {
    leaders.push_back(comm->liveness().names().of(0));
  }
  NamedOperations& all = *made;
  all.relay_ = std::make_unique<Relay>(
      all.board_, std::move(coordinator), std::move(sockets), std::move(leaders),
      [&all](const FailureReport& report) { all.note_failure(report); });
  return made;
}

}  // namespace gradred
