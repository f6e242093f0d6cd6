// What one rank did and when: a bounded ring buffer, written as a Chrome trace.
//
// chrome://tracing and ui.perfetto.dev show the files; those of the ranks of one host have one
// clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/signature.h"

namespace gradred {

struct TraceEvent {
  enum class Kind : std::uint8_t { kBegin, kRound, kSend, kReceive, kAbandon };

  Kind kind = Kind::kBegin;
  std::int32_t peer = -1;  // of a message
  std::uint32_t line = 0;  // executions in flight together have different ones
  std::uint32_t tag = 0;
  std::uint32_t round = 0;
  std::uint64_t operation = 0;  // from Trace::next_operation
  std::uint64_t start_ns = 0;   // clock.h
  std::uint64_t end_ns = 0;
  std::uint64_t bytes = 0;  // of a message, or of all messages of a round
  Signature signature;
  const char* path = "messages";  // what carries the operation out
  const char* mode = nullptr;     // how the program made the call, where that is known
};

// Thread-safe. Once full, each event replaces the oldest.
class Trace {
 public:
  explicit Trace(int rank, std::size_t capacity = 1 << 16);

  void record(const std::vector<TraceEvent>& events);
  // A number that no other operation of this trace has.
  std::uint64_t next_operation();
  // The lowest line that is free, until it is given back.
  std::uint32_t open_line();
  void close_line(std::uint32_t line);

  // {"traceEvents": [...]}: pid is the rank, tid the line; each operation that is a schedule
  // encloses its rounds and each round its messages. Calls of a device's driver that took long have
  // lines of their own, one for each thread. `otherData` tells how many events were replaced.
  std::string json() const;
  // Writes json() to `path` with `{rank}` filled in, or to path-with-the-rank: "a.json" ->
  // "a.3.json". Throws UsageError when the file cannot be written.
  void write(const std::string& path) const;

 private:
  std::vector<TraceEvent> in_order() const;

  const int rank_;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
  std::uint64_t recorded_ = 0;
  std::uint64_t operations_ = 0;
  std::vector<bool> lines_;
};

// The file of one rank: see Trace::write.
std::string trace_path(const std::string& path, int rank);

}  // namespace gradred
