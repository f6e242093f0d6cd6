// GRADRED_RESULT_HASH: for each call that has ended well, this rank writes a line with a hash of
// the result to a file of its own. The files of two runs show at which call the runs begin to
// differ.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/signature.h"
#include "calls/call.h"

namespace gradred {

struct Settings;

// The only one of this process. Any thread may call it.
class ResultLog {
 public:
  // The log that the settings of a communicator with `size` ranks ask for, made at first need;
  // nullptr: they ask for none. Throws UsageError if the file cannot be written.
  static ResultLog* get(const Settings& settings, int rank, int size);
  explicit ResultLog(const std::string& path);
  ~ResultLog();
  ResultLog(const ResultLog&) = delete;
  ResultLog& operator=(const ResultLog&) = delete;

  std::string next_communicator();  // the name in its lines
  // Writes a line: the number of a call of `who`, what the call is, and the hash of its result.
  void write(std::uint64_t number, std::string_view who, std::string_view what,
             std::uint64_t hash) noexcept;
  // Writes such a line with the next number of `who`.
  void write(const std::string& who, std::string_view what, std::uint64_t hash) noexcept;

 private:
  const int file_;
  std::mutex mutex_;
  unsigned communicators_ = 0;
  std::map<std::string, std::uint64_t> numbers_;
};

// Where a call writes its result, which is there once the call has ended.
struct Result {
  OutBuffer out;
  std::size_t bytes = 0;
  Signature signature;
};
// Data in device memory are copied to host memory. Returns 0 if that fails.
std::uint64_t hash_of(Memory memory, const void* data, std::size_t bytes) noexcept;

// The logged results of one communicator.
class LoggedResults {
 public:
  LoggedResults(ResultLog& log, int rank, int size)
      : log_(log), name_(log.next_communicator()), rank_(rank), size_(size) {}

  // Returns the number of a call that begins.
  std::uint64_t begin() { return calls_.fetch_add(1, std::memory_order_relaxed) + 1; }
  Result result_of(const Call& call) const;
  void end(std::uint64_t number, const Result& result) noexcept;

 private:
  ResultLog& log_;
  const std::string name_;
  const int rank_, size_;
  std::atomic<std::uint64_t> calls_{0};
};

}  // namespace gradred
