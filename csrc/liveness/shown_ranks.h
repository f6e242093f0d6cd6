// Publishes which rank of which job a process is. Each rank writes this to its status file.
// `gradred ps`, timeout reports and ranks that share no call with it read the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradred {

// The beginning of a status file's name in /proc. A random number follows.
inline constexpr const char* kStatusFile = "gradred-rank";

struct AboutRank {
  std::int64_t pid = 0;
  int rank = 0, size = 0;  // in MPI_COMM_WORLD, or as place_among_all() returns
  bool spawned = false;    // spawned by an MPI program, whose launcher it shares, or no MPI rank
};

// A process that publishes itself, and its descriptor of the status file.
struct ShownRank {
  AboutRank about;
  std::int32_t status_file = -1;
};

// Creates the status file of this process (liveness/status_page.h), which begins with this text.
// Errors are ignored: a program must not fail because it cannot be observed.
void show_rank(const AboutRank& about);
// What this process has published; nothing in a forked child of that process.
std::optional<AboutRank> shown_by_this_process();
// All such processes of this user on this host.
std::vector<ShownRank> shown_ranks();

// Returns the process number of a launcher above a process, the nearest or the outermost one; 0:
// none.
std::int64_t launcher_of(std::int64_t pid, bool nearest);

}  // namespace gradred
