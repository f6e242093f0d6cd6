// Writes a file in Chrome's trace format with an event for each step of a named operation: when
// ranks submitted it, when they agreed on it, and when it was carried out. The events have
// Horovod's names.
//
// The file is complete JSON after each event: the next event overwrites the closing bracket.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "named/submission.h"

namespace gradred {

// The times of one operation that has ended, in nanoseconds of the steady clock. 0: the operation
// did not get so far.
struct NamedTimes {
  std::uint64_t agreed_ns = 0;   // when this rank read that every rank has submitted it
  std::uint64_t started_ns = 0;  // when its batch started
  int last_rank = -1;            // the rank that submitted it last; -1: unknown
  std::size_t batch = 0;         // operations in its batch
};

// Any thread may call it.
class Timeline {
 public:
  // Owns `file`, a descriptor that is open for writing, and writes from the file's beginning. With
  // `mark_cycles` the start of each batch is an event of its own.
  Timeline(int file, bool mark_cycles);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void submitted(std::string_view name, NamedKind kind, int rank, std::uint64_t at_ns);
  void ended(std::string_view name, const Submission& what, const NamedTimes& times,
             std::string_view problem);
  void batch_began(std::uint64_t at_ns);
  // Why writing has stopped; empty if it has not.
  std::string problem() const;

 private:
  using Fields = std::initializer_list<std::pair<std::string_view, Json>>;
  int tensor(std::string_view name, std::string& text);
  std::string event(char phase, int tensor, std::uint64_t at_ns, Fields fields = {}) const;
  void write(std::string& text);

  mutable std::mutex mutex_;
  const int file_;
  const bool marks_cycles_;
  const std::uint64_t begin_ns_;
  std::uint64_t length_ = 0;  // of the file, without the closing bracket
  // Maps each tensor's name to the number that its events give as process id.
  std::map<std::string, int, std::less<>> tensors_;
  std::string problem_;
};

}  // namespace gradred
