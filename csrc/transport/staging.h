// A decorator for buffers that the transport below cannot reach: their messages pass through host
// memory.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace gradred {

// What is sent is copied to host memory and sent once the copy is complete; what arrives is copied
// to where it was wanted before test() returns true. Buffers in host memory go to `inner` as they
// are; it must outlive the channels.
class StagingTransport : public Transport {
 public:
  explicit StagingTransport(Transport& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Channel> open(Memory memory) override;

 private:
  Transport& inner_;
};

// The same for a channel for host memory.
std::unique_ptr<Channel> staged(std::unique_ptr<Channel> inner, Memory memory);

}  // namespace gradred
