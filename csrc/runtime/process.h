// A process as a rank, from its beginning to its end. A program in C++, the Python extension and a
// library that is loaded before a program use it alike.
#pragma once

#include "comm/call.h"

namespace gradred {

// The MPI of this process is `library` (a handle of dlopen) or what it depends on. Reads the
// settings and what the launcher has left in the environment, and shows this rank to others. Throws
// UsageError as read_settings() does; then it may be called again.
void begin(void* library);
// For communicators that are met from now on: read_settings(). Shows this rank, too, where the MPI
// did not run yet when the process began.
void begin_communicator();

// The program is over, and the MPI still runs, perhaps: ends what is in flight, tells the peers and
// writes what trace and profile ask for. Again does nothing. Throws UsageError for a file that
// cannot be written.
void end_program();
// In place of MPI_Finalize, which is called only if that would not wait for ranks that never come.
// Where it must not, the process ends without the destructors of the MPI's libraries, too, and with
// the status it would have had. Returns what MPI_Finalize does.
int finalize();

// What a thread of C++ does while it waits: nothing beside.
class PlainWait final : public WaitHook {
 public:
  void waiting() override {}
  void long_work() override {}
};

}  // namespace gradred
