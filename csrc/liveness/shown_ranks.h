// Which rank of which job a process is: each rank shows it in its status file, for `gradred ps`,
// the reports of time limits, and the ranks that have met it in no call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradred {

// The beginning of a status file's link in /proc. What follows is random.
inline constexpr const char* kStatusFile = "gradred-rank";

struct AboutRank {
  std::int64_t pid = 0;
  int rank = 0, size = 0;  // in MPI_COMM_WORLD, or as place_among_all() says
  bool spawned = false;    // by a program of MPI, which has the same launcher; or no MPI's rank
};

// A process that shows itself, and its descriptor of the status file.
struct ShownRank {
  AboutRank about;
  std::int32_t status_file = -1;
};

// Makes the status file of this process (liveness/status_page.h), which says this first. What
// stands in the way is passed over: the program has other worries than to be seen.
void show_rank(const AboutRank& about);
// What this process has shown; nothing in the fork of one that has.
std::optional<AboutRank> shown_by_this_process();
// All of this user on this host.
std::vector<ShownRank> shown_ranks();

// The process number of a launcher above a process, the nearest or the outermost one; 0: none.
std::int64_t launcher_of(std::int64_t pid, bool nearest);

}  // namespace gradred
