#include "comm/set_up_calls.h"

#include <string>

#include "base/failure.h"
#include "comm/communicator.h"
#include "comm/driving.h"
#include "comm/members.h"
#include "comm/patience.h"
#include "comm/registry.h"
#include "comm/watch.h"

namespace gradred {

int SetUpCalls::wait(mpi::Handle& request) {
  const mpi::Mpi& mpi = mpi::get();
  Patience patience;
  Watch watch;
  for (int done = 0;;) {
    const int code = mpi.call.Test(&request, &done, mpi.is.status_ignore);
    if (code != 0 || done != 0) return code;
    patience.wait([&] {
      hook_.waiting();
      drive();
      throw_if_lost();
      watch.check(about_);
    });
  }
}

// What this communicator would tell of its ranks is not known yet, but others may have told of
// them, and the launcher.
void SetUpCalls::throw_if_lost() {
  const auto lost = lost_.look([this] {
    auto ended = lost_member(comm_);
    return ended ? ended : left_member(comm_);
  });
  if (!lost) return;
  throw PeerLost(*lost + " while " + names().of(rank_) + " waits " + about_.what());
}

RankNames SetUpCalls::names() const { return RankNames(Registry::get().world_ranks(comm_)); }

void SetUpCalls::allgather(const void* mine, std::size_t bytes, void* all) {
  const mpi::Mpi& mpi = mpi::get();
  const auto count = static_cast<int>(bytes);
  mpi::Handle request = 0;
  mpi.check(mpi.call.Iallgather(mine, count, mpi.is.byte_type, all, count, mpi.is.byte_type, comm_,
                                &request),
            "MPI_Iallgather");
  mpi.check(wait(request), "MPI_Iallgather");
}

void SetUpCalls::barrier() {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = 0;
  mpi.check(mpi.call.Ibarrier(comm_, &request), "MPI_Ibarrier");
  mpi.check(wait(request), "MPI_Ibarrier");
}

void SetUpCalls::bcast(void* data, std::size_t bytes) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = 0;
  mpi.check(mpi.call.Ibcast(data, static_cast<int>(bytes), mpi.is.byte_type, 0, comm_, &request),
            "MPI_Ibcast");
  mpi.check(wait(request), "MPI_Ibcast");
}

void SetUpCalls::band(const std::uint64_t* mine, std::uint64_t* all, std::size_t words) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = 0;
  mpi.check(mpi.call.Iallreduce(mine, all, static_cast<int>(words), mpi.is.uint64_type,
                                mpi.is.band_op, comm_, &request),
            "MPI_Iallreduce");
  mpi.check(wait(request), "MPI_Iallreduce");
}

mpi::Handle SetUpCalls::duplicate() {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle copy = 0, request = 0;
  // It fails on all ranks alike, at once or at the end.
  if (mpi.call.Comm_idup(comm_, &copy, &request) != 0) return 0;
  return wait(request) == 0 ? mpi.normalise(copy) : 0;
}

int await_duplicate(mpi::Handle comm, mpi::Handle& request, WaitHook& hook) {
  hook.long_work();
  const mpi::Mpi& mpi = mpi::get();
  int rank = 0, size = 0;
  mpi.check(mpi.call.Comm_rank(comm, &rank), "MPI_Comm_rank");
  mpi.check(mpi.call.Comm_size(comm, &size), "MPI_Comm_size");
  SetUpCalls calls(mpi.normalise(comm), rank, size, hook, FirstCall::Kind::kDuplicates);
  try {
    return calls.wait(request);
  } catch (...) {  // the MPI goes on with it, and would wait for it in MPI_Finalize
    process_poisoned.store(true, std::memory_order_relaxed);
    throw;
  }
}

}  // namespace gradred
