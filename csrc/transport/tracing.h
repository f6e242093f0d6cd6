// A decorator that records what the executor asks of a transport. Without it nothing is recorded or
// paid.
#pragma once

#include <memory>

#include "base/trace.h"
#include "transport/transport.h"

namespace gradred {

// Records operations, rounds and messages of every channel. A message ends when test() has found
// all messages of its round complete: a channel tells no more. Both arguments must outlive the
// channels.
class TracingTransport : public Transport {
 public:
  TracingTransport(Transport& inner, Trace& trace) : inner_(inner), trace_(trace) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Channel> open(Memory memory) override;

 private:
  Transport& inner_;
  Trace& trace_;
};

}  // namespace gradred
