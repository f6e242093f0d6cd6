// The environment of this process, and values that launchers and the user set in it. No other code
// reads the environment.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls/settings.h"

namespace gradred {

std::vector<std::pair<std::string, std::string>> environment();
// Whether the environment is the one that `seen` holds, all variables one after the other. If it is
// not, `seen` becomes the present one.
bool is_environment(std::string& seen);
std::string variable(const char* name);  // empty if there is no such variable

// RANK and WORLD_SIZE. No value if they are not set, or cannot be right.
std::optional<RankOfJob> rank_of_job();
// The number of ranks that mpiexec has started on this host; 0 if it does not publish it.
std::size_t ranks_on_host();
// The folder of the user's measured costs: `gradred` in XDG_CACHE_HOME, if that is an absolute
// path, else in ~/.cache. Empty if the user has no home, as in some containers; then measurements
// are not stored.
std::string figures_folder();

}  // namespace gradred
