// Ranks as threads of one process: a transport for tests.
//
// Nothing is timed or lost here, so a test that fails shows a fault of the schedule or the
// executor. Under the rendezvous protocol a send completes only when its receive has been posted
// and the data copied, as the largest messages of every MPI do: a schedule that needs buffering
// hangs here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/transport.h"

namespace gradred {

enum class Protocol : std::uint8_t { kEager, kRendezvous };

// Which error the failure of one rank is to the others: UsageError, TransportError, PeerLost.
enum class Cause : std::uint8_t { kUsage, kTransport, kPeerLost };

// The ranks 0 ... size - 1. Thread-safe. Channels and transports keep what they need alive.
class ThreadsWorld {
 public:
  ThreadsWorld(int size, Protocol protocol);

  // One per rank and thread; channels of one rank may be used by different threads.
  std::unique_ptr<Transport> transport(int rank);

  // Rank `rank` has failed: from now on every test() throws an error that names it. The first call
  // counts.
  void poison(int rank, const std::string& reason, Cause cause = Cause::kTransport);

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace gradred
