// A process as a rank, from its start to its end. Used by C++ programs, by the Python extension,
// and by a library that is loaded before a program.
#pragma once

#include "calls/call.h"

namespace gradred {

// Starts gradred in this process. The process's MPI is `library` (a handle of dlopen) or one of its
// dependencies. Reads the settings and the launcher's variables, and shows this rank in its
// status file. Throws UsageError like read_settings(); the caller may then call it again.
void begin(void* library);
// Reads the settings for communicators that are used from now on, with read_settings(). If the MPI
// did not run yet at begin(), also shows this rank in its status file.
void begin_communicator();

// Called at the end of the program, usually while the MPI still runs. Ends what is in flight,
// notifies the peers and writes the files of trace and profile. A second call does nothing. Throws
// UsageError if a file cannot be written.
void end_program();
// Has exit() end the process without the destructors of libraries.
void exit_at_once();
// Replaces MPI_Finalize, which it calls unless that would wait for ranks that never call it. If it
// must not be called, the process ends later without the destructors of the MPI's libraries, with
// the same exit status. Returns the result of MPI_Finalize, or 0. `mpi_finalize`: what to call as
// MPI_Finalize; nullptr: the MPI's own function, which no tool sees.
int finalize(int (*mpi_finalize)() = nullptr);

// The wait hook of a C++ thread, which does nothing.
class PlainWait final : public WaitHook {
 public:
  void waiting() override {}
  void long_work() override {}
};

}  // namespace gradred
