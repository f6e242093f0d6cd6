#include "liveness/process.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>

#include "liveness/status_page.h"

namespace gradred {
namespace {

// `process` as in /proc: a number or "self".
std::uint64_t token_of(const std::string& process, std::int32_t status_file) {
  if (status_file < 0) return 0;
  return name_of_file("/proc/" + process + "/fd/" + std::to_string(status_file));
}

// What can be found out about a process when this one can open no more files: only a running
// process has an executable.
bool has_program(std::int64_t pid) {
  char target[1];
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  return readlink(link.c_str(), target, sizeof target) >= 0 || (errno != ENOENT && errno != ESRCH);
}

}  // namespace

// Reads fields 2, 3, 4 and 22. Field 2 is in parentheses and may contain anything, so the others
// are counted from the last closing parenthesis.
std::optional<ProcessStat> read_stat(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const auto open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return std::nullopt;
  ProcessStat found{.name = line.substr(open + 1, close - open - 1)};
  std::istringstream fields(line.substr(close + 1));
  fields >> found.state >> found.parent;
  std::string skipped;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  fields >> found.start_time;
  if (fields.fail()) return std::nullopt;
  return found;
}

std::string state_text(const ProcessId& process) {
  if (process.start_time == 0) return "state unknown";
  const auto stat = read_stat(process.pid);
  if (!stat) return is_alive(process) ? "state unknown" : "ended";
  if (stat->ended()) return "ended";
  if (stat->stopped()) return "stopped by a signal";
  return stat->state == 'R' ? "running" : "sleeping";
}

std::string process_text(const ProcessId& process) {
  return "process " + std::to_string(process.pid);
}

const std::string& host_id() {
  static const std::string id = [] {
    char name[65] = {};
    gethostname(name, sizeof name - 1);
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    char pids[32] = {};  // process numbers are valid only within one namespace
    if (readlink("/proc/self/ns/pid", pids, sizeof pids - 1) < 0) pids[0] = '\0';
    return std::string(name) + "/" + boot + pids;
  }();
  return id;
}

ProcessId this_process() {
  static std::mutex mutex;
  static ProcessId known;  // first determined while files can still be opened
  const std::lock_guard lock(mutex);
  const auto pid = static_cast<std::int64_t>(getpid());
  const std::int32_t file = status_file();
  if (known.pid != pid || known.start_time == 0) {
    const ProcessStat stat = read_stat(pid).value_or(ProcessStat());
    known = {pid, stat.start_time, token_of("self", file), file};
  } else if (known.status_file != file) {
    known.status_file = file;
    known.token = token_of("self", file);
  }
  return known;
}

std::optional<ProcessId> process_numbered(std::int64_t pid, std::int32_t status_file) {
  const auto stat = read_stat(pid);
  if (!stat) return std::nullopt;
  const std::uint64_t token = token_of(std::to_string(pid), status_file);
  return ProcessId{pid, stat->start_time, token, status_file};
}

bool shows_token(const ProcessId& process) {
  return process.token != 0 &&
         token_of(std::to_string(process.pid), process.status_file) == process.token;
}

bool is_alive(const ProcessId& process) {
  if (process.start_time == 0) return true;
  const auto stat = read_stat(process.pid);
  if (!stat) return access("/proc/self/stat", R_OK) != 0 || has_program(process.pid);
  return stat->start_time == process.start_time && !stat->ended();
}

bool is_going(const ProcessId& process) {
  const auto stat = read_stat(process.pid);
  return !(stat && stat->stopped()) && is_alive(process);
}

}  // namespace gradred
