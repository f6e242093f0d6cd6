// The trace of this process, which all its communicators share.
#pragma once

#include "base/trace.h"
#include "calls/settings.h"

namespace gradred {

// The trace that the settings of a communicator with `size` ranks ask for, made at first need;
// nullptr: they ask for none.
Trace* process_trace(const Settings& settings, int rank, int size);

// Writes the trace to settings().trace; does nothing if there is no trace.
void write_trace();

}  // namespace gradred
