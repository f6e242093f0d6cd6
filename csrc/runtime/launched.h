// Reads what `gradred run` has put into the environment of a rank.
#pragma once

#include <string>

namespace gradred {

// Finds the pipe to this rank's supervisor and the shared page that lists failed ranks. Call it as
// early as possible, since the program may change its environment.
void find_supervisor();
// Does the same for ranks that gradred itself has connected (src/gradred/launch/pmi.py), where a
// thread of this process stands for the supervisor. It also passes on failures of communicators.
void use_launcher(const std::string& pipe, const std::string& board);

}  // namespace gradred
