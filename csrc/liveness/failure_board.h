// What the launcher says of ranks that have failed, on whatever host: this rank's supervisor writes
// it as text (src/gradred/launch/failure_board.py), and this process only reads.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/failure.h"

namespace gradred {

// Reads the board that lies in this memory of the supervisor's from now on, for as long as the
// process lives, if its first line is the token. Lines are only ever added.
bool use_failure_board(std::span<const char> page, std::string_view token);
// Whether any rank of the job has failed; costs nothing.
bool any_rank_failed();
// The first of these ranks of MPI_COMM_WORLD that has failed, by its place among them, and how:
// "on h2 was killed by SIGKILL".
std::optional<std::pair<std::size_t, std::string>> failure_among(std::span<const int> world_ranks);
// How the communicator of the first of them that says so had failed before it failed itself.
std::optional<FailureReport> report_among(std::span<const int> world_ranks);
// All of them that have failed, by their places.
std::vector<int> failures_among(std::span<const int> world_ranks);

}  // namespace gradred
