// How a rank reports to `gradred run`: through a pipe to its supervisor, a launcher process on the
// same host (src/gradred/launch/supervisor.py). The supervisor reads one line at a time
// (src/gradred/launch/rank_pipe.py).
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string_view>

#include "base/failure.h"

namespace gradred {

struct Supervisor {
  int pipe = -1;  // -1: none
  // Distinguishes the pipe from another file that has the same descriptor after the program closed
  // the pipe. If it differs, nothing is sent.
  ino_t inode = 0;
};
void use_supervisor(int pipe, ino_t inode);
bool has_supervisor();
// Whether the launcher passes failures of this rank's communicators on to the other ranks, which
// then get no message from this rank.
void use_launcher_for_failures();
bool launcher_passes_failures_on();

// Reports the ranks of MPI_COMM_WORLD that have ended and without which this job continues. Sends
// nothing if there are none.
void tell_survived(std::span<const int> ended);
// Reports all ranks of MPI_COMM_WORLD that the program has left out, whether they live or not, in
// place of those that it reported before.
void tell_left_out(std::span<const int> ranks);
// Reports that this rank is about to end, with the present time: ranks that fail because of its end
// fail later. `follows`: this rank has lost peers, which ended before it. `failure`: that of its
// communicator, for peers that do not know it yet.
void tell_leaving(bool follows, const std::optional<FailureReport>& failure);
void tell_finalize(std::string_view word);  // "begins", "enters", "returns", "skips"

}  // namespace gradred
