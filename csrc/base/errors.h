// One exception type per Python exception class; check() states an invariant or an argument rule.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/random.h"

namespace gradred {

class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
class UsageError : public Error {  // the caller can mend it
  using Error::Error;
};
class TransportError : public Error {  // the MPI or the network below failed
  using Error::Error;
};
class TimeoutError : public TransportError {
 public:
  explicit TimeoutError(const std::string& text, std::uint64_t id = random_number())
      : TransportError(text), id_(id) {}
  // Of the failure: every error that tells of it has the same (FailureReport::id).
  std::uint64_t id() const { return id_; }

 private:
  std::uint64_t id_;
};
class WaitTimeout : public TimeoutError {  // the limit of one wait: what it waits for goes on
 public:
  using TimeoutError::TimeoutError;
};
class PeerLost : public TransportError {  // a peer's process is gone
 public:
  explicit PeerLost(const std::string& text, bool may_shrink = false)
      : TransportError(text), may_shrink_(may_shrink) {}
  // Whether the ranks that live share memory, and so may go on without the peer.
  bool may_shrink() const { return may_shrink_; }

 private:
  bool may_shrink_;
};
class DeviceError : public Error {
  using Error::Error;
};

// An internal invariant: a failure is a bug in gradred and says where.
// (The builtins are what std::source_location is made of, which clang 14 cannot compile.)
inline void check(bool condition, const char* what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!condition) {
    throw Error(std::string("internal error: ") + what + " (" + file + ":" + std::to_string(line) +
                ")");
  }
}

}  // namespace gradred
