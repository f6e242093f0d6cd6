// What the launcher reports about failed ranks on all hosts. This rank's supervisor writes it as
// text (src/gradred/launch/failure_board.py); this process only reads it.
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

// From now on reads the board in `page`, memory that the supervisor shares, if its first line is
// the token. The caller keeps the memory mapped as long as the process lives. The supervisor only
// ever appends lines.
bool use_failure_board(std::span<const char> page, std::string_view token);
// Whether any rank of the job has failed. Reads one byte.
bool any_rank_failed();
// Finds the first failed rank among these ranks of MPI_COMM_WORLD. Returns its index among them and
// a text: "on h2 was killed by SIGKILL".
std::optional<std::pair<std::size_t, std::string>> failure_among(std::span<const int> world_ranks);
// Returns how the communicator of a failed rank had failed before the rank itself ended, from the
// first of these ranks that reported it.
std::optional<FailureReport> report_among(std::span<const int> world_ranks);
// Returns the indices of all failed ranks among these ranks.
std::vector<int> failures_among(std::span<const int> world_ranks);

}  // namespace gradred
