// Runs a collective operation with one thread per rank, so that tests need no MPI.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "memory/memory.h"
#include "schedule/schedule.h"
#include "testing/faulty.h"
#include "testing/threads.h"

namespace gradred {

struct ThreadsRun {
  std::vector<const Schedule*> schedules;  // one per rank, in order
  std::vector<Buffer> buffers;             // work buffer of each rank, which receives its result
  std::vector<const void*> inputs;         // same length as work; empty or nullptr: in place
  std::vector<Stream*> before;  // per rank: what its buffers wait for; empty or nullptr: none
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;        // kAvg and kPremul only combine, without scaling
  bool staged = false;     // the transport sees host memory only (StagingTransport)
  std::size_t slices = 1;  // parts of the vector, all in flight together
  Protocol protocol = Protocol::kRendezvous;
  std::optional<FaultSpec> fault;
  std::string trace;  // file for each rank's trace (Trace::write); empty: none
  std::chrono::duration<double> timeout{60.0};
};

// Blocks until all ranks have finished. If ranks fail, it throws the type of the first error, with
// one line for each failed rank: "rank 2: PeerLost: ...". The content of the buffers is undefined
// then.
void run_on_threads(const ThreadsRun& run);

}  // namespace gradred
