// What `gradred run` has left in the environment of a rank.
#pragma once

namespace gradred {

// The pipe to this rank's supervisor, and the page that tells which ranks have failed. As early as
// can be: the program may change its environment.
void find_supervisor();

}  // namespace gradred
