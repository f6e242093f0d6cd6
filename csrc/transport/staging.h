// A decorator for buffers that the transport below cannot access: their messages pass through
// staging buffers in host memory.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace gradred {

// Data to send are copied to host memory and sent once the copy is complete. Received data are
// copied to their target before test() returns true. Buffers in host memory go directly to `inner`.
// The caller keeps `inner` alive as long as the channels.
class StagingTransport : public Transport {
 public:
  explicit StagingTransport(Transport& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Channel> open(Memory memory) override;

 private:
  Transport& inner_;
};

// Stages the messages of one channel that accepts host memory.
std::unique_ptr<Channel> staged(std::unique_ptr<Channel> inner, Memory memory);

}  // namespace gradred
