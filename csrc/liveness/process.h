// Identifies the process of a rank, and checks whether another process is alive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gradred {

// A process of this host. The start time distinguishes it from a later process with the same
// number. The random name of its status file distinguishes it from a process in another container
// or on another machine.
struct ProcessId {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;   // clock ticks since boot, from /proc/<pid>/stat; 0: unknown
  std::uint64_t token = 0;        // name_of_file() of its status file; 0: it has no status file
  std::int32_t status_file = -1;  // descriptor in that process (status_page.h); -1: none

  bool operator==(const ProcessId& other) const {
    return pid == other.pid && start_time == other.start_time && token == other.token;
  }
};

// Both values are determined once, so they remain known when no more files can be opened.
ProcessId this_process();
// Processes with equal ids may share memory and see the same process numbers.
const std::string& host_id();
// Whether the process with this number here is the one that introduced itself: it holds the same
// status file. Also false if it has ended or may not be inspected. Needs no free descriptor.
bool shows_token(const ProcessId& process);
// False once the process has ended, even while it is a zombie. True if /proc gives no answer. Needs
// no free descriptor.
bool is_alive(const ProcessId& process);

// Whether the process is alive and not stopped by a signal, as far as /proc shows.
bool is_going(const ProcessId& process);

// The content of /proc/<pid>/stat.
struct ProcessStat {
  std::string name;  // name of the program
  char state = '?';
  std::int64_t parent = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot

  bool ended() const { return state == 'Z' || state == 'X'; }
  bool stopped() const { return state == 'T' || state == 't'; }
};
// Returns nullopt if there is no such process, or if this process can open no more files.
std::optional<ProcessStat> read_stat(std::int64_t pid);

// Returns the id of another process, or nullopt if there is none. `status_file` as in ProcessId.
std::optional<ProcessId> process_numbered(std::int64_t pid, std::int32_t status_file);

std::string process_text(const ProcessId& process);  // "process 17"
// The state that /proc shows: "running", "sleeping", "stopped by a signal", "ended" or
// "state unknown".
std::string state_text(const ProcessId& process);

}  // namespace gradred
