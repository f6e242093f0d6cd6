// What profile, trace and result log record of a started operation. None is made if none of them is
// wanted.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/trace.h"
#include "observe/profile.h"
#include "observe/result_log.h"

namespace gradred {

class Observation {
 public:
  // All may be nullptr. `path`: how the call is carried out, in the words of the trace.
  Observation(std::shared_ptr<Profile> profile, Trace* trace, const Call& call, const char* path,
              std::shared_ptr<LoggedResults> results);
  ~Observation();
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

  std::uint64_t start_ns() const { return start_ns_; }
  void look(const NodeGroup& node);  // calls ProfileRow::look(), if it is this operation's turn
  void spent(std::uint64_t ns);      // by the program, in Start, Test or Wait
  bool counts() const { return row_ != nullptr; }
  // Called once.
  void end(bool well, const WaitTimes& waits, UsedTransport transport,
           bool is_copied_to_host) noexcept;

 private:
  const std::shared_ptr<Profile> profile_;
  ProfileRow* const row_;
  const bool looks_;
  Trace* const trace_;
  const std::uint64_t bytes_, start_ns_;
  TraceEvent event_;
  const std::shared_ptr<LoggedResults> results_;
  const std::uint64_t number_ = 0;  // in the result log
  const Result result_;
};

// While it lives, the program is inside the operation. nullptr: the operation is not observed.
class InCall {
 public:
  explicit InCall(Observation* observation)
      : InCall(observation, observation != nullptr ? now_ns() : 0) {}
  InCall(Observation* observation, std::uint64_t begin)
      : observation_(observation), begin_(begin) {}
  ~InCall() {
    if (observation_ != nullptr) observation_->spent(now_ns() - begin_);
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  Observation* const observation_;
  const std::uint64_t begin_;
};

// A blocking call in the trace; nullptr: no trace. The call counts as abandoned unless ended() is
// called.
class TracedCall {
 public:
  TracedCall(Trace* trace, std::uint32_t line, const char* path, const char* mode,
             const Signature& signature);
  ~TracedCall();
  TracedCall(const TracedCall&) = delete;
  TracedCall& operator=(const TracedCall&) = delete;
  void ended() { well_ = true; }

 private:
  Trace* const trace_;
  TraceEvent event_;
  bool well_ = false;
};

const char* text_of(Mode mode);

}  // namespace gradred
