#include "base/trace.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string_view>

#include "base/chakra.h"
#include "base/driver_calls.h"
#include "base/errors.h"
#include "base/files.h"

namespace gradred {
namespace {

// An operation, as far as its events are still in the buffer. A channel does not know which round
// is the last, so the end of an operation is derived here and not recorded.
struct Extent {
  TraceEvent whole;
  bool abandoned = false;
};

std::map<std::uint64_t, Extent> operations_of(const std::vector<TraceEvent>& events) {
  std::map<std::uint64_t, Extent> operations;
  for (const TraceEvent& event : events) {
    const auto [found, is_new] = operations.try_emplace(event.operation, Extent{event, false});
    Extent& extent = found->second;
    extent.whole.start_ns = std::min(extent.whole.start_ns, event.start_ns);
    extent.whole.end_ns = std::max(extent.whole.end_ns, event.end_ns);
    extent.abandoned |= event.kind == TraceEvent::Kind::kAbandon;
  }
  return operations;
}

// Chrome counts in microseconds. Three decimals preserve the nanoseconds.
std::string microseconds(std::uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%llu.%03u", static_cast<unsigned long long>(ns / 1000),
                static_cast<unsigned>(ns % 1000));
  return text;
}

std::string duration_event(int rank, const TraceEvent& event, const std::string& name,
                           const std::string& args) {
  return "{\"ph\": \"X\", \"name\": \"" + name + "\", \"pid\": " + std::to_string(rank) +
         ", \"tid\": " + std::to_string(event.line) + ", \"ts\": " + microseconds(event.start_ns) +
         ", \"dur\": " + microseconds(event.end_ns - event.start_ns) + ", \"args\": {" + args +
         "}}";
}

std::string operation_json(int rank, const Extent& extent) {
  const TraceEvent& whole = extent.whole;
  std::string args = "\"operation\": " + std::to_string(whole.operation) +
                     ", \"tag\": " + std::to_string(whole.tag) +
                     ", \"bytes\": " + std::to_string(bytes_of(whole.signature)) +
                     ", \"path\": \"" + whole.path + "\"";
  if (whole.mode != nullptr) args += std::string(", \"mode\": \"") + whole.mode + "\"";
  args += std::string(", \"abandoned\": ") + (extent.abandoned ? "true" : "false");
  return duration_event(rank, whole, describe(whole.signature), args);
}

std::string part_json(int rank, const TraceEvent& event) {
  const std::string shared = "\"operation\": " + std::to_string(event.operation) +
                             ", \"round\": " + std::to_string(event.round) +
                             ", \"bytes\": " + std::to_string(event.bytes);
  if (event.kind == TraceEvent::Kind::kRound) {
    return duration_event(rank, event, "round " + std::to_string(event.round), shared);
  }
  const std::string peer = std::to_string(event.peer);
  const char* name = event.kind == TraceEvent::Kind::kSend ? "send to " : "receive from ";
  return duration_event(rank, event, name + peer, shared + ", \"peer\": " + peer);
}

std::string name_json(int rank, const char* what, std::uint32_t line, const std::string& name) {
  return std::string("{\"ph\": \"M\", \"name\": \"") + what +
         "\", \"pid\": " + std::to_string(rank) + ", \"tid\": " + std::to_string(line) +
         ", \"args\": {\"name\": \"" + name + " " +
         std::to_string(what[0] == 'p' ? static_cast<std::uint32_t>(rank) : line) + "\"}}";
}

// Driver calls that took long. They belong to the process, so each thread has a line of its own.
constexpr std::uint32_t kFirstLineOfDriver = 1'000'000;

std::string driver_json(int rank) {
  std::map<std::int64_t, std::uint32_t> lines;
  std::string text;
  for (const SlowDriverCall& slow : slow_driver_calls()) {
    const auto next = kFirstLineOfDriver + static_cast<std::uint32_t>(lines.size());
    const auto [line, is_new] = lines.try_emplace(slow.thread, next);
    if (is_new) text += ",\n" + name_json(rank, "thread_name", next, "driver's calls, thread");
    TraceEvent event;
    event.line = line->second;
    event.start_ns = slow.start_ns;
    event.end_ns = slow.end_ns;
    text += ",\n" +
            duration_event(rank, event, slow.name, "\"thread\": " + std::to_string(slow.thread));
  }
  return text;
}

bool is_part(const TraceEvent& event) {
  return event.kind != TraceEvent::Kind::kBegin && event.kind != TraceEvent::Kind::kAbandon;
}

}  // namespace

Trace::Trace(int rank, std::size_t capacity) : rank_(rank), capacity_(capacity) {
  check(capacity > 0, "a trace without room");
}

void Trace::record(const std::vector<TraceEvent>& events) {
  const std::lock_guard lock(mutex_);
  for (const TraceEvent& event : events) {
    if (events_.size() < capacity_) {
      events_.push_back(event);
    } else {
      events_[recorded_ % capacity_] = event;
    }
    ++recorded_;
  }
}

std::uint64_t Trace::next_operation() {
  const std::lock_guard lock(mutex_);
  return operations_++;
}

std::uint32_t Trace::open_line() {
  const std::lock_guard lock(mutex_);
  const auto free = std::find(lines_.begin(), lines_.end(), false);
  const auto line = static_cast<std::uint32_t>(free - lines_.begin());
  if (free == lines_.end()) {
    lines_.push_back(true);
  } else {
    *free = true;
  }
  return line;
}

void Trace::close_line(std::uint32_t line) {
  const std::lock_guard lock(mutex_);
  lines_[line] = false;
}

std::vector<TraceEvent> Trace::in_order() const {
  std::vector<TraceEvent> events = events_;
  if (recorded_ > events.size()) {
    const auto oldest = static_cast<std::ptrdiff_t>(recorded_ % capacity_);
    std::rotate(events.begin(), events.begin() + oldest, events.end());
  }
  return events;
}

std::string Trace::json() const {
  const std::lock_guard lock(mutex_);
  const std::vector<TraceEvent> events = in_order();

  std::string text = "{\"traceEvents\": [\n" + name_json(rank_, "process_name", 0, "rank");
  for (std::uint32_t line = 0; line < lines_.size(); ++line) {
    text += ",\n" + name_json(rank_, "thread_name", line, "execution");
  }
  for (const auto& [number, extent] : operations_of(events)) {
    text += ",\n" + operation_json(rank_, extent);
  }
  for (const TraceEvent& event : events) {
    if (is_part(event)) text += ",\n" + part_json(rank_, event);
  }
  return text + driver_json(rank_) +
         "\n],\n\"displayTimeUnit\": \"ns\",\n\"otherData\": {\"replaced_events\": " +
         std::to_string(recorded_ - events.size()) + "}}\n";
}

std::string Trace::chakra() const {
  const std::lock_guard lock(mutex_);
  std::vector<ChakraOperation> operations;
  for (const auto& [number, extent] : operations_of(in_order())) {
    const TraceEvent& whole = extent.whole;
    if (extent.abandoned) continue;
    operations.push_back({whole.signature, whole.start_ns, whole.end_ns, whole.path});
  }
  std::stable_sort(operations.begin(), operations.end(),
                   [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
  return chakra_of(operations, rank_);
}

void Trace::write(const std::string& path) const {
  const std::string target = trace_path(path, rank_);
  const std::string text = target.ends_with(".et") ? chakra() : json();
  if (const int error = write_file(target, text); error != 0) {
    throw UsageError("the trace file '" + target + "' cannot be written (" +
                     why_not_written(error) +
                     "); name a file in a folder that exists and is writable");
  }
}

std::string trace_path(const std::string& path, int rank) {
  const std::string number = std::to_string(rank);
  constexpr std::string_view kPlace = "{rank}";
  if (path.find(kPlace) != std::string::npos) {
    std::string filled = path;
    for (std::size_t at = 0; (at = filled.find(kPlace, at)) != std::string::npos;) {
      filled.replace(at, kPlace.size(), number);
    }
    return filled;
  }
  const std::size_t slash = path.rfind('/');
  const std::size_t name = slash == std::string::npos ? 0 : slash + 1;
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= name) return path + "." + number;  // no suffix
  return path.substr(0, dot) + "." + number + path.substr(dot);
}

}  // namespace gradred
