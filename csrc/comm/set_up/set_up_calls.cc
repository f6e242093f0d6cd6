#include "comm/set_up/set_up_calls.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/failure.h"
#include "base/text.h"
#include "engine/driving.h"
#include "engine/waiting.h"
#include "liveness/first_calls.h"
#include "liveness/watchdog.h"
#include "mpi/world_ranks.h"

namespace gradred {
namespace {

// Having no communicators left in the MPI must not end the program, whatever its error handlers do.
// Which communicator's handler is called differs between MPIs and calls.
class ErrorsReturn {
 public:
  explicit ErrorsReturn(mpi::Handle comm) {
    const mpi::Mpi& mpi = mpi::get();
    for (const mpi::Handle one : {comm, mpi.is.comm_self, mpi.is.comm_world}) {
      mpi::Handle handler = 0;
      if (mpi.call.Comm_get_errhandler(one, &handler) != 0) continue;
      saved_[count_++] = {one, mpi.normalise(handler)};
      mpi.call.Comm_set_errhandler(one, mpi.is.errors_return);
    }
  }
  ~ErrorsReturn() {
    const mpi::Mpi& mpi = mpi::get();
    while (count_ > 0) {
      auto& [comm, handler] = saved_[--count_];
      mpi.call.Comm_set_errhandler(comm, handler);
      mpi.call.Errhandler_free(&handler);
    }
  }
  ErrorsReturn(const ErrorsReturn&) = delete;
  ErrorsReturn& operator=(const ErrorsReturn&) = delete;

 private:
  std::array<std::pair<mpi::Handle, mpi::Handle>, 3> saved_{};
  std::size_t count_ = 0;
};

}  // namespace

int SetUpCalls::wait(mpi::Handle& request) {
  const mpi::Mpi& mpi = mpi::get();
  int code = 0;
  wait([&] {
    int done = 0;
    code = mpi.call.Test(&request, &done, mpi.is.status_ignore);
    return code != 0 || done != 0;
  });
  return code;
}

void SetUpCalls::wait(const std::function<bool()>& done) {
  Backoff backoff;
  Watchdog watchdog;
  while (!done()) {
    backoff.wait([&] {
      hook_.waiting();
      drive();
      throw_if_lost();
      watchdog.check(about_);
    });
  }
}

// This communicator has received nothing about its ranks yet, but others may have, and so may the
// launcher.
void SetUpCalls::throw_if_lost() {
  const auto lost = lost_.look([this] {
    auto ended = lost_rank(comm_, about_.names);
    return ended ? ended : left_rank(comm_, about_.names);
  });
  if (!lost) return;
  throw PeerLost(*lost + " while " + about_.waiter() + " waits in " + about_.what());
}

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
  {
    const ErrorsReturn for_a_while(comm_);
    int code = mpi.call.Comm_idup(comm_, &copy, &request);
    if (code == 0) code = wait(request);
    if (code != 0) copy = 0;
  }
  // If one rank has no duplicate, all ranks go without.
  const std::uint64_t made = copy != 0 ? 1 : 0;
  std::uint64_t all_made = 0;
  band(&made, &all_made, 1);
  copy = mpi.normalise(copy);
  if (copy != 0 && all_made == 0) mpi.call.Comm_free(&copy);
  if (all_made == 0) return 0;
  mpi.check(mpi.call.Comm_set_errhandler(copy, mpi.is.errors_return), "MPI_Comm_set_errhandler");
  return copy;
}

int await_duplicate(mpi::Handle comm, mpi::Handle& request, WaitHook& hook) {
  const mpi::Mpi& mpi = mpi::get();
  constexpr int kLooks = 20;  // most ranks come together, and nothing has to be known of them
  for (int look = 0; look < kLooks; ++look) {
    int done = 0;
    const int code = mpi.call.Test(&request, &done, mpi.is.status_ignore);
    if (code != 0 || done != 0) return code;
  }
  hook.long_work();
  int rank = 0, size = 0;
  mpi.check(mpi.call.Comm_rank(comm, &rank), "MPI_Comm_rank");
  mpi.check(mpi.call.Comm_size(comm, &size), "MPI_Comm_size");
  comm = mpi.normalise(comm);
  SetUpCalls calls(comm, rank, size, hook, RankNames(mpi::world_ranks(comm)),
                   FirstCall::Kind::kDuplicates);
  try {
    return calls.wait(request);
  } catch (...) {  // the MPI goes on with it, and would wait for it in MPI_Finalize
    process_poisoned.store(true, std::memory_order_relaxed);
    throw;
  }
}

void throw_if_any(Bootstrap& calls, const std::string& reason, const std::string& what,
                  const std::string& remedy) {
  struct Reason {
    char text[200] = {};
  };
  Reason mine;
  set_text(mine.text, reason);
  std::vector<Reason> all(static_cast<std::size_t>(calls.size()));
  calls.allgather(&mine, sizeof mine, all.data());
  for (const Reason& one : all) {
    if (one.text[0] != '\0') throw TransportError(what + ": " + one.text + ". " + remedy);
  }
}

}  // namespace gradred
