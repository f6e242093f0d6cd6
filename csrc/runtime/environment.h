// The environment of this process, and what others have said in it. Nothing else reads it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/settings.h"

namespace gradred {

std::vector<std::pair<std::string, std::string>> environment();
std::string variable(const char* name);  // empty: there is none

// RANK and WORLD_SIZE. None: they are not there, or cannot be.
std::optional<RankOfJob> rank_of_job();
// The number of ranks that mpiexec has put on this host; 0 where it does not say.
std::size_t ranks_on_host();
// Where the user's measured costs are: `gradred` in XDG_CACHE_HOME, which counts if it is absolute,
// or in ~/.cache. Empty where the user has no home, as in some containers: then nothing is kept.
std::string figures_folder();

}  // namespace gradred
