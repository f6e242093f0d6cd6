// Which process a rank is, and whether another one still lives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gradred {

// A process of this host: the start time tells a process from a later one with the same number, and
// the name of its status file, which is random, from one of another container or machine.
struct ProcessId {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;   // clock ticks since boot, from /proc/<pid>/stat; 0: unknown
  std::uint64_t token = 0;        // name_of_file() of its status file; 0: it has none
  std::int32_t status_file = -1;  // its descriptor there (status_page.h); -1: none

  bool operator==(const ProcessId& other) const {
    return pid == other.pid && start_time == other.start_time && token == other.token;
  }
};

// Both are found out once: a rank that may open no more files later still knows them.
ProcessId this_process();
const std::string& host_id();  // who has the same may share memory and see the same processes
// Whether the process that has this number here is the one that told of itself: the same file hangs
// there. False as well where it has ended, or may not be looked at. Works without free descriptors.
bool shows_token(const ProcessId& process);
// False once the process has ended, also while it is a zombie. True when /proc does not tell.
// Works without free descriptors, too.
bool is_alive(const ProcessId& process);

// Alive and not stopped by a signal, as far as /proc tells.
bool is_going(const ProcessId& process);

// What /proc/<pid>/stat says.
struct ProcessStat {
  std::string name;  // of the program
  char state = '?';
  std::int64_t parent = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot

  bool ended() const { return state == 'Z' || state == 'X'; }
  bool stopped() const { return state == 'T' || state == 't'; }
};
// nullopt: there is no such process, or this one may open no more files.
std::optional<ProcessStat> read_stat(std::int64_t pid);

// Another one; `status_file` as in ProcessId. nullopt: there is none.
std::optional<ProcessId> process_numbered(std::int64_t pid, std::int32_t status_file);

std::string process_text(const ProcessId& process);  // "process 17"
// "running", "sleeping", "stopped", "ended": what /proc says.
std::string state_text(const ProcessId& process);

}  // namespace gradred
