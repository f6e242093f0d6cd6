// A call that is carried out as another one, whose result makes its own.
#pragma once

#include "calls/call.h"

namespace gradred {

class Carried {
 public:
  virtual ~Carried() = default;
  // The other call. Its arrays live as long as this object, and those of the program's call.
  virtual const Call& call() const = 0;
  // After it: writes the result of the program's call.
  virtual void finish() = 0;
  // The MPI may go on using the memory: it stays allocated for ever.
  virtual void keep_for_ever() noexcept = 0;
};

}  // namespace gradred
