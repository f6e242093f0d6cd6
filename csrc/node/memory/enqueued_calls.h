// The rests of all calls whose work the devices of this process have been given (EnqueuedCall).
#pragma once

namespace gradred {

class EnqueuedCall;

// A thread that calls no driver and takes no lock of an operation passes on their counts. So they
// go on even if all other threads wait in a driver for the end of this very work: one that has to
// give more of it, for example, behind a cudaFree of the program.
class EnqueuedCalls {
 public:
  // Before the device is given anything that waits. Throws std::system_error if the thread cannot
  // be started.
  static void add(EnqueuedCall& rest);
  static void remove(EnqueuedCall& rest) noexcept;  // afterwards the thread does not use it
};

}  // namespace gradred
