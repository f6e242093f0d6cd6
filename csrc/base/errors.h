// The exception types, one per Python exception class, and check() for invariants.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/random.h"

namespace gradred {

class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
class UsageError : public Error {  // an error that the caller can correct
 public:
  explicit UsageError(const std::string& text, const char* mpi_class = nullptr)
      : Error(text), mpi_class_(mpi_class) {}
  // MPI's name of its class of errors, if the MPI reports this one, too: "ERR_COMM".
  const char* mpi_class() const { return mpi_class_; }

 private:
  const char* mpi_class_;
};
class TransportError : public Error {  // the MPI or the network below failed
  using Error::Error;
};
class TimeoutError : public TransportError {
 public:
  explicit TimeoutError(const std::string& text, std::uint64_t id = random_number())
      : TransportError(text), id_(id) {}
  // Identifies the failure: every error that reports it has the same id (FailureReport::id).
  std::uint64_t id() const { return id_; }

 private:
  std::uint64_t id_;
};
class WaitTimeout : public TimeoutError {  // one wait timed out; its operation continues
 public:
  using TimeoutError::TimeoutError;
};
class PeerLost : public TransportError {  // the process of a peer has ended
 public:
  explicit PeerLost(const std::string& text, bool may_shrink = false)
      : TransportError(text), may_shrink_(may_shrink) {}
  // Whether the living ranks share memory, and so may continue without the peer.
  bool may_shrink() const { return may_shrink_; }

 private:
  bool may_shrink_;
};
class DeviceError : public Error {
  using Error::Error;
};

// Checks an internal invariant. The error reports a bug in gradred and its place in the source.
// (The builtins are those behind std::source_location, which clang 14 cannot compile.)
inline void check(bool condition, const char* what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!condition) {
    throw Error(std::string("internal error: ") + what + " (" + file + ":" + std::to_string(line) +
                ")");
  }
}

}  // namespace gradred
