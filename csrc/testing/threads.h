// A transport for tests: the ranks are threads of one process.
//
// It has no timing and loses no messages, so a failed test shows an error in the schedule or
// executor. With the rendezvous protocol, a send completes only after its receive has been posted
// and the data copied, as the largest messages do in every MPI. So a schedule that needs buffering
// hangs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/transport.h"

namespace gradred {

enum class Protocol : std::uint8_t { kEager, kRendezvous };

// The error that the other ranks get when one rank fails: UsageError, TransportError or PeerLost.
enum class Cause : std::uint8_t { kUsage, kTransport, kPeerLost };

// The ranks 0 ... size - 1. Thread-safe. Channels and transports keep alive what they use.
class ThreadsWorld {
 public:
  ThreadsWorld(int size, Protocol protocol);

  // One per rank and thread. Different threads may use channels of one rank.
  std::unique_ptr<Transport> transport(int rank);

  // Declares that a rank has failed. From now on every test() throws an error that names it. Only
  // the first call has an effect.
  void poison(int rank, const std::string& reason, Cause cause = Cause::kTransport);

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace gradred
