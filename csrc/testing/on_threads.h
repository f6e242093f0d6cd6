// A collective operation with one thread per rank: how tests run schedules without an MPI.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "memory/memory.h"
#include "schedule/schedule.h"
#include "testing/threads.h"
#include "transport/faulty.h"

namespace gradred {

struct ThreadsRun {
  std::vector<const Schedule*> schedules;  // one per rank, in order
  std::vector<Buffer> buffers;             // each rank's work, where its result will be
  std::vector<const void*> inputs;         // as long as work; none, or null for a schedule in place
  std::vector<Stream*> before;             // of each rank; none, or null: what its buffers wait for
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;        // kAvg and kPremul only combine: no scaling
  bool staged = false;     // the transport sees host memory only (StagingTransport)
  std::size_t slices = 1;  // parts of the vector, all in flight together
  Protocol protocol = Protocol::kRendezvous;
  std::optional<FaultSpec> fault;
  std::string trace;  // where each rank writes its trace (Trace::write); empty: nowhere
  std::chrono::duration<double> timeout{60.0};
};

// Blocks until all ranks have finished. When ranks fail, throws the kind of error that was the
// first, with one line for each failed rank: "rank 2: PeerLost: ...". The buffers are then
// undefined.
void run_on_threads(const ThreadsRun& run);

}  // namespace gradred
