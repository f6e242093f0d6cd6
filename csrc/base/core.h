// Yielding the core on which a thread runs, and whether other threads want it.
#pragma once

#include <cstdint>

namespace gradred {

// Between two looks at a word: leaves the core's resources to another thread that it may run.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Yields to other threads. If the call takes long, another thread has run meanwhile, and cores
// count as shared for a while.
void yield_core();

// Whether threads share cores, judged by recent calls of yield_core(). If so, a waiting thread
// should yield at once, whatever the number of cores. The other threads may belong to other
// programs.
bool cores_are_shared();

}  // namespace gradred
