#include "transport/tracing.h"

#include <utility>
#include <vector>

#include "base/clock.h"

namespace gradred {
namespace {

class TracingChannel : public Channel {
 public:
  TracingChannel(std::unique_ptr<Channel> inner, Trace& trace)
      : inner_(std::move(inner)), trace_(trace), line_(trace.open_line()) {}
  ~TracingChannel() override { trace_.close_line(line_); }
  TracingChannel(const TracingChannel&) = delete;  // the line is returned only once
  TracingChannel& operator=(const TracingChannel&) = delete;

  void begin(std::uint32_t tag, const Signature& signature) override {
    operation_ = event(TraceEvent::Kind::kBegin);
    operation_.tag = tag;
    operation_.signature = signature;
    operation_.operation = trace_.next_operation();
    trace_.record({operation_});
    inner_->begin(tag, signature);
  }

  void send(int peer, const void* data, std::size_t bytes) override {
    post(TraceEvent::Kind::kSend, peer, bytes);
    inner_->send(peer, data, bytes);
  }

  void recv(int peer, void* data, std::size_t bytes) override {
    post(TraceEvent::Kind::kReceive, peer, bytes);
    inner_->recv(peer, data, bytes);
  }

  bool test() override {
    if (!inner_->test()) return false;
    finish();
    ++operation_.round;
    return true;
  }

  bool drain() override {
    close();
    return inner_->drain();
  }

  bool abandon() noexcept override {
    const bool quiet = inner_->abandon();
    close();
    return quiet;
  }

 private:
  void close() {
    if (round_.empty()) return;
    finish();
    trace_.record({event(TraceEvent::Kind::kAbandon)});
  }

  TraceEvent event(TraceEvent::Kind kind) const {
    TraceEvent event = operation_;
    event.kind = kind;
    event.line = line_;
    event.start_ns = event.end_ns = now_ns();
    return event;
  }

  void post(TraceEvent::Kind kind, int peer, std::size_t bytes) {
    if (round_.empty()) round_.push_back(event(TraceEvent::Kind::kRound));
    TraceEvent message = event(kind);
    message.peer = peer;
    message.bytes = bytes;
    round_.front().bytes += bytes;
    round_.push_back(message);
  }

  void finish() {
    if (round_.empty()) return;
    const std::uint64_t end = now_ns();
    for (TraceEvent& event : round_) event.end_ns = end;
    trace_.record(round_);
    round_.clear();
  }

  const std::unique_ptr<Channel> inner_;
  Trace& trace_;
  const std::uint32_t line_;
  TraceEvent operation_;
  std::vector<TraceEvent> round_;  // the open round and its messages; retains its capacity
};

}  // namespace

std::unique_ptr<Channel> TracingTransport::open(Memory memory) {
  return std::make_unique<TracingChannel>(inner_.open(memory), trace_);
}

}  // namespace gradred
