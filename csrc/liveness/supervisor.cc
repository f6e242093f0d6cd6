#include "liveness/supervisor.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>

namespace gradred {
namespace {

Supervisor supervisor;  // set when the process starts
std::atomic<bool> passes_failures_on{false};

constexpr std::size_t kLineBytes = 250;  // the length that a failure board stores

// Suppresses SIGPIPE, since the supervisor may have ended.
void write_line(int pipe, const std::string& line) {
  sigset_t signal, before;
  sigemptyset(&signal);
  sigaddset(&signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signal, &before);
  const bool broken = write(pipe, line.data(), line.size()) < 0 && errno == EPIPE;
  const timespec at_once{};
  if (broken) sigtimedwait(&signal, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void tell(const std::string& line) {
  const auto [pipe, inode] = supervisor;
  struct stat found{};
  const bool open = pipe >= 0 && fstat(pipe, &found) == 0;
  if (open && S_ISFIFO(found.st_mode) && found.st_ino == inode) write_line(pipe, line + "\n");
}

std::string in_words(std::span<const int> ranks) {
  std::string text;
  for (const int rank : ranks) text += " " + std::to_string(rank);
  return text;
}

std::string in_one_line(std::string_view text) {
  std::istringstream words{std::string(text)};
  std::string line;
  for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
  return line.substr(0, kLineBytes);
}

}  // namespace

void use_supervisor(int pipe, ino_t inode) { supervisor = {pipe, inode}; }

bool has_supervisor() { return supervisor.pipe >= 0; }

void use_launcher_for_failures() { passes_failures_on.store(true); }

bool launcher_passes_failures_on() { return passes_failures_on.load(std::memory_order_relaxed); }

void tell_survived(std::span<const int> ended) {
  if (!ended.empty()) tell("ended" + in_words(ended));
}

void tell_left_out(std::span<const int> ranks) { tell("without" + in_words(ranks)); }

void tell_leaving(bool follows, const std::optional<FailureReport>& failure) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  char at[32];
  std::snprintf(at, sizeof at, "%.6f", now.count());
  tell((follows ? "follows " : "leaves ") + std::string(at) + " " +
       (failure ? in_one_line(written(*failure)) : ""));
}

void tell_finalize(std::string_view word) { tell("finalize " + std::string(word)); }

}  // namespace gradred
