#include "comm/known_handles.h"

#include <pthread.h>

namespace gradred {

// A forked child finds no handle, and so calls Communicator::of(), which refuses.
KnownHandles::KnownHandles() {
  pthread_atfork(nullptr, nullptr, [] {
    for (auto& entry : get().entries_) entry.first = 0;
  });
}

void KnownHandles::forget_freed() {
  for (auto& [handle, comm] : entries_) {
    if (comm && comm->liveness().freed()) comm.reset();
  }
}

}  // namespace gradred
