// How a rank speaks to `gradred run`: by a pipe to the launcher's process beside it, its supervisor
// (src/gradred/launch/supervisor.py), which takes one line at a time
// (src/gradred/launch/rank_pipe.py).
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string_view>

#include "base/failure.h"

namespace gradred {

struct Supervisor {
  int pipe = -1;  // none
  // Tells the pipe from another file that has its number later, when the program has closed it:
  // then nothing is told.
  ino_t inode = 0;
};
void use_supervisor(int pipe, ino_t inode);
bool has_supervisor();

// The ranks of MPI_COMM_WORLD that have ended and that this job goes on without; none: tells
// nothing.
void tell_survived(std::span<const int> ended);
// This rank comes to its end: whoever notices and fails, does so later. `follows`: it has lost
// peers, whose ends come first. `failure`: of its communicator, for peers that do not know it yet.
void tell_leaving(bool follows, const std::optional<FailureReport>& failure);
void tell_finalize(std::string_view word);  // "enters", "returns", "skips"

}  // namespace gradred
