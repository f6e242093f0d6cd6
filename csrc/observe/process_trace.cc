#include "observe/process_trace.h"

#include <mutex>

#include "calls/place_among_all.h"

namespace gradred {
namespace {

Trace* trace = nullptr;  // never destroyed, as the progress thread may record until the end
std::once_flag trace_once;

}  // namespace

Trace* process_trace(const Settings& settings, int rank, int size) {
  if (settings.trace.empty()) return nullptr;
  std::call_once(trace_once, [&] { trace = new Trace(place_among_all(rank, size).rank); });
  return trace;
}

void write_trace() {
  if (trace != nullptr) trace->write(settings().trace);
}

}  // namespace gradred
