// The core that a thread runs on, which others may want.
#pragma once

#include <cstdint>

namespace gradred {

// Lets others run. Where that takes long another thread has run meanwhile, and cores are shared for
// a while.
void yield_core();

// Whether threads share cores, as far as yield_core() has found out lately: who waits does well to
// yield at once, whatever the number of cores. They may belong to other programs.
bool cores_are_shared();

}  // namespace gradred
