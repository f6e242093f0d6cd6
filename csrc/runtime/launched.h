// Reads what `gradred run` has put into the environment of a rank.
#pragma once

namespace gradred {

// Finds the pipe to this rank's supervisor and the shared page that lists failed ranks. Call it as
// early as possible, since the program may change its environment.
void find_supervisor();

}  // namespace gradred
