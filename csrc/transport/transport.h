// How the ranks of one communicator exchange messages: the interface that the executor sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/signature.h"
#include "memory/memory.h"

namespace gradred {

// The messages of one execution at a time, of buffers in the memory that open() was given. begin()
// names the operation; the tag is agreed by all ranks and distinct from those of all operations in
// flight. The first message to each peer carries the signature, and test() throws UsageError when a
// peer's differs: nothing that depends on that peer is completed. Messages between two ranks under
// one tag match in order. Not thread-safe: one thread at a time.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual void begin(std::uint32_t tag, const Signature& signature) = 0;
  // Post a message. The memory stays the channel's until test() has returned true.
  virtual void send(int peer, const void* data, std::size_t bytes) = 0;
  virtual void recv(int peer, void* data, std::size_t bytes) = 0;
  // Whether everything posted so far has completed. Never blocks, drives the transport's progress;
  // throws UsageError, PeerLost or TransportError, after which only drain() and abandon() may be
  // called.
  virtual bool test() = 0;
  // The operation is off on all ranks, which know it: receive no more, and wait for what has been
  // sent. Never blocks; true when the memory is the caller's again.
  virtual bool drain() {
    abandon();
    return true;
  }
  // Withdraw all that is posted, whatever the peers do. False where the transport cannot withdraw
  // everything, and may still write into memory it was given.
  virtual bool abandon() noexcept = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Thread-safe. The transport must outlive the channel.
  virtual std::unique_ptr<Channel> open(Memory memory) = 0;
};

}  // namespace gradred
