// GRADRED_RESULT_HASH: a line in a file of this rank's for each call that has ended well, with a
// hash of its result, so that the files of two runs show with which call they part.
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
#include "comm/call.h"

namespace gradred {

struct Settings;

// Of this process. Any thread may call.
class ResultLog {
 public:
  // Of the settings of a communicator of so many ranks, made at first need; null: they ask for
  // none. Throws UsageError where the file cannot be written.
  static ResultLog* get(const Settings& settings, int rank, int size);
  explicit ResultLog(const std::string& path);
  ~ResultLog();
  ResultLog(const ResultLog&) = delete;
  ResultLog& operator=(const ResultLog&) = delete;

  std::string next_communicator();  // as its lines are to name it
  // Writes down the number of a call of `who`, what it is, and its hash.
  void write(std::uint64_t number, std::string_view who, std::string_view what,
             std::uint64_t hash) noexcept;
  // As the next call of that name.
  void write(const std::string& who, std::string_view what, std::uint64_t hash) noexcept;

 private:
  const int file_;
  std::mutex mutex_;
  unsigned communicators_ = 0;
  std::map<std::string, std::uint64_t> numbers_;
};

// What a call writes, which lies there once it has ended.
struct Result {
  OutBuffer out;
  std::size_t bytes = 0;
  Signature signature;

  static Result of(const Call& call, int size);
};
// Where it lies in a device's memory it is copied to the host's; 0 where that fails.
std::uint64_t hash_of(Memory memory, const void* data, std::size_t bytes) noexcept;

// The results of one communicator.
class LoggedResults {
 public:
  LoggedResults(ResultLog& log, int size)
      : log_(log), name_(log.next_communicator()), size_(size) {}

  // The number of a call that begins.
  std::uint64_t begin() { return calls_.fetch_add(1, std::memory_order_relaxed) + 1; }
  Result result_of(const Call& call) const { return Result::of(call, size_); }
  void end(std::uint64_t number, const Result& result) noexcept;

 private:
  ResultLog& log_;
  const std::string name_;
  const int size_;
  std::atomic<std::uint64_t> calls_{0};
};

}  // namespace gradred
