// A decorator that records what the executor requests from a transport. Without it, tracing costs
// nothing.
#pragma once

#include <memory>

#include "base/trace.h"
#include "transport/transport.h"

namespace gradred {

// Records operations, rounds and messages of every channel. A message ends when test() finds its
// whole round complete, since a channel reports nothing finer. The caller keeps both arguments
// alive as long as the channels.
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
