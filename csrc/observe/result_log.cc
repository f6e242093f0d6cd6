#include "observe/result_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <new>

#include "base/errors.h"
#include "base/files.h"
#include "base/result_hash.h"
#include "base/trace.h"
#include "calls/place_among_all.h"
#include "calls/settings.h"

namespace gradred {
namespace {

int open_log(const std::string& path) {
  if (const int error = write_file(path, ""); error != 0) {
    throw UsageError("GRADRED_RESULT_HASH: the file '" + path + "' cannot be written (" +
                     why_not_written(error) +
                     "). Name a file in a folder that exists and is writable");
  }
  return open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
}

}  // namespace

ResultLog* ResultLog::get(const Settings& settings, int rank, int size) {
  if (settings.result_hash.empty()) return nullptr;
  static std::once_flag once;
  static ResultLog* log = nullptr;  // never destroyed, as the progress thread may write to the end
  std::call_once(once, [&] {
    log = new ResultLog(trace_path(settings.result_hash, place_among_all(rank, size).rank));
  });
  return log;
}

ResultLog::ResultLog(const std::string& path) : file_(open_log(path)) {}

ResultLog::~ResultLog() { close(file_); }

std::string ResultLog::next_communicator() {
  const std::lock_guard lock(mutex_);
  return "communicator " + std::to_string(++communicators_);
}

// One system call writes a line, so that it is whole whatever ends the process.
void ResultLog::write(std::uint64_t number, std::string_view who, std::string_view what,
                      std::uint64_t hash) noexcept {
  std::array<char, 1024> line{};
  const int length =
      std::snprintf(line.data(), line.size(), "%09" PRIu64 " %.*s: %.*s %016" PRIx64 "\n", number,
                    static_cast<int>(std::min<std::size_t>(who.size(), 700)), who.data(),
                    static_cast<int>(std::min<std::size_t>(what.size(), 200)), what.data(), hash);
  while (::write(file_, line.data(), static_cast<std::size_t>(length)) < 0 && errno == EINTR) {
  }
}

void ResultLog::write(const std::string& who, std::string_view what, std::uint64_t hash) noexcept {
  std::uint64_t number = 0;
  try {
    const std::lock_guard lock(mutex_);
    number = ++numbers_[who];
  } catch (const std::bad_alloc&) {
    return;  // the program goes on, without this line
  }
  write(number, who, what, hash);
}

Result LoggedResults::result_of(const Call& call) const {
  const std::size_t counts = got_counts(call.kind, {rank_, size_, call.root});
  return {call.out, call.count * counts * size_of(call.dtype), call.signature()};
}

std::uint64_t hash_of(Memory memory, const void* data, std::size_t bytes) noexcept try {
  if (memory.is_host() || bytes == 0) return hash_of_result(data, bytes);
  HostAllocation copy(*memory.device(), bytes);
  Stream stream(memory);
  stream.copy(copy.data(), data, bytes);
  if (stream.finish()) return hash_of_result(copy.data(), bytes);
  copy.keep_for_ever();
  return 0;
} catch (const std::exception&) {  // the device failed, or no memory: the program goes on
  return 0;
}

void LoggedResults::end(std::uint64_t number, const Result& result) noexcept {
  const std::uint64_t hash = hash_of(result.out.memory, result.out.data, result.bytes);
  log_.write(number, name_, describe(result.signature), hash);
}

}  // namespace gradred
