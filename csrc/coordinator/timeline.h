// A file in Chrome's trace format that tells of named operations when ranks submitted them, when
// they were agreed on, and when they were carried out. The events have Horovod's names.
//
// The file is complete JSON after each event: the next one takes the closing bracket's place.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "coordinator/submission.h"

namespace gradred {

// Of one operation that has ended; nanoseconds of the steady clock, 0: it did not come so far.
struct NamedTimes {
  std::uint64_t agreed_ns = 0;   // every rank has submitted it, and this one has read so
  std::uint64_t started_ns = 0;  // its batch
  int last_rank = -1;            // that submitted it; -1: unknown
  std::size_t batch = 0;         // operations that were carried out as one
};

// Any thread may call.
class Timeline {
 public:
  // Owns `file`, a descriptor open for writing, and writes from its beginning. With `mark_cycles`
  // the start of each batch is an event of its own.
  Timeline(int file, bool mark_cycles);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void submitted(std::string_view name, NamedKind kind, int rank, std::uint64_t at_ns);
  void ended(std::string_view name, const Submission& what, const NamedTimes& times,
             std::string_view problem);
  void batch_began(std::uint64_t at_ns);
  // Why nothing more is written; empty: all is well.
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
  std::uint64_t length_ = 0;                         // of the file, less the closing bracket
  std::map<std::string, int, std::less<>> tensors_;  // the number that an event calls its process
  std::string problem_;
};

}  // namespace gradred
