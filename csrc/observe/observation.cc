#include "observe/observation.h"

namespace gradred {
namespace {

Mode mode_of(const Call& call) {
  return call.persistent ? Mode::kPersistentStarted : Mode::kStarted;
}

// From its start to now. An abandoned operation gets an event of its own.
void record(Trace& trace, TraceEvent event, bool well) {
  event.end_ns = now_ns();
  if (well) return trace.record({event});
  TraceEvent abandoned = event;
  abandoned.kind = TraceEvent::Kind::kAbandon;
  trace.record({event, abandoned});
}

}  // namespace

const char* text_of(Mode mode) {
  switch (mode) {
    case Mode::kBlocking:
      return "blocking";
    case Mode::kStarted:
      return "started";
    default:
      return "persistent";
  }
}

Observation::Observation(std::shared_ptr<Profile> profile, Trace* trace, const Call& call,
                         const char* path, std::shared_ptr<LoggedResults> results)
    : profile_(std::move(profile)),
      row_(profile_ != nullptr ? &profile_->row(call, mode_of(call)) : nullptr),
      looks_(row_ != nullptr && row_->looks_at_started()),
      trace_(trace),
      bytes_(call.count * size_of(call.dtype)),
      start_ns_(now_ns()),
      results_(std::move(results)),
      number_(results_ != nullptr ? results_->begin() : 0),
      result_(results_ != nullptr ? results_->result_of(call) : Result()) {
  if (trace_ == nullptr) return;
  event_.line = trace_->open_line();
  event_.operation = trace_->next_operation();
  event_.start_ns = start_ns_;
  event_.signature = call.signature();
  event_.path = path;
  event_.mode = text_of(mode_of(call));
}

Observation::~Observation() {
  if (trace_ != nullptr) trace_->close_line(event_.line);
}

void Observation::look(const NodeGroup& node) {
  if (looks_) row_->look(node);
}

void Observation::spent(std::uint64_t ns) {
  if (row_ != nullptr) row_->exposed(ns);
}

void Observation::end(bool well, const WaitTimes& waits, UsedTransport transport,
                      bool is_copied_to_host) noexcept {
  if (row_ != nullptr && well) {
    row_->ended(bytes_, now_ns() - start_ns_);
    row_->add_waits(waits);
    row_->add_transport(transport, is_copied_to_host);
  }
  if (trace_ != nullptr) record(*trace_, event_, well);
  if (results_ != nullptr && well) results_->end(number_, result_);
}

TracedCall::TracedCall(Trace* trace, std::uint32_t line, const char* path, const char* mode,
                       const Signature& signature)
    : trace_(trace) {
  if (trace_ == nullptr) return;
  event_.line = line;
  event_.operation = trace_->next_operation();
  event_.signature = signature;
  event_.path = path;
  event_.mode = mode;
  event_.start_ns = now_ns();
}

TracedCall::~TracedCall() {
  if (trace_ != nullptr) record(*trace_, event_, well_);
}

}  // namespace gradred
