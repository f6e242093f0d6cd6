// A trace of what one rank did and when: a bounded ring buffer, written as a Chrome trace.
//
// chrome://tracing and ui.perfetto.dev show the files. The files of ranks on one host have the same
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
  std::int32_t peer = -1;  // peer of a message
  std::uint32_t line = 0;  // row in the picture; differs between concurrent executions
  std::uint32_t tag = 0;
  std::uint32_t round = 0;
  std::uint64_t operation = 0;  // from Trace::next_operation
  std::uint64_t start_ns = 0;   // clock.h
  std::uint64_t end_ns = 0;
  std::uint64_t bytes = 0;  // of a message, or of all messages of a round
  Signature signature;
  const char* path = "messages";  // the plan or transport that carried it
  const char* mode = nullptr;     // how the program made the call; nullptr: unknown
};

// Thread-safe. Once the trace is full, each new event replaces the oldest.
class Trace {
 public:
  explicit Trace(int rank, std::size_t capacity = 1 << 16);

  void record(const std::vector<TraceEvent>& events);
  // Returns a number that is unique in this trace.
  std::uint64_t next_operation();
  // Returns the lowest free line. The caller returns it by close_line().
  std::uint32_t open_line();
  void close_line(std::uint32_t line);

  // Returns {"traceEvents": [...]} with pid = rank and tid = line. Each operation with a schedule
  // encloses its rounds, and each round its messages. Long driver calls have lines of their own,
  // one per thread. `otherData` contains the number of replaced events.
  std::string json() const;
  // The same for simulators, without rounds and messages: see chakra.h.
  std::string chakra() const;
  // Writes json(), or chakra() for a name that ends in ".et", to `path` with `{rank}` replaced by
  // the rank. Without `{rank}`, the rank is inserted: "a.json" -> "a.3.json". Throws UsageError if
  // the file cannot be written.
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
