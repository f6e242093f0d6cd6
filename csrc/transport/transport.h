// The interface by which the executor exchanges messages between the ranks of one communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/signature.h"
#include "memory/memory.h"

namespace gradred {

// Carries the messages of one execution at a time, for buffers in the memory that open() was given.
// begin() starts an operation. All ranks agree on its tag, which differs from those of all
// operations in flight. The first message to each peer carries the signature. If a peer's signature
// differs, test() throws UsageError, and nothing that depends on that peer completes. Messages
// between two ranks under one tag match in order. Not thread-safe.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual void begin(std::uint32_t tag, const Signature& signature) = 0;
  // send() and recv() post a message. The channel uses the memory until test() returns true.
  virtual void send(int peer, const void* data, std::size_t bytes) = 0;
  virtual void recv(int peer, void* data, std::size_t bytes) = 0;
  // Whether everything posted so far has completed. Never blocks, and makes progress on the
  // transport. Throws UsageError, PeerLost or TransportError; after that, only drain() and
  // abandon() may be called.
  virtual bool test() = 0;
  // Called when all ranks know that the operation is cancelled: receives no more and waits for what
  // has been sent. Never blocks. Returns true when the caller may use the memory again.
  virtual bool drain() {
    abandon();
    return true;
  }
  // Cancels all that is posted, whatever the peers do. Returns false if the transport cannot cancel
  // everything and may still write to the memory.
  virtual bool abandon() noexcept = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Thread-safe. The caller keeps the transport alive as long as the channel.
  virtual std::unique_ptr<Channel> open(Memory memory) = 0;
};

}  // namespace gradred
