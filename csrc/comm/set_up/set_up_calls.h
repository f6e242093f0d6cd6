// The collective MPI calls by which ranks set a communicator up. Waits for them are like all
// others: signals and time limits end them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "calls/call.h"
#include "liveness/first_calls.h"
#include "liveness/lost_peers.h"
#include "mpi/mpi.h"
#include "node/memory/bootstrap.h"

namespace gradred {

class SetUpCalls final : public Bootstrap {
 public:
  SetUpCalls(mpi::Handle comm, int rank, int size, WaitHook& hook, RankNames names,
             FirstCall::Kind kind = FirstCall::Kind::kBlocks)
      : comm_(comm),
        rank_(rank),
        size_(size),
        hook_(hook),
        about_{comm, std::move(names), rank, size, kind} {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void allgather(const void* mine, std::size_t bytes, void* all) override;
  void barrier() override;
  RankNames names() const override { return about_.names; }
  void bcast(void* data, std::size_t bytes);  // from rank 0
  void band(const std::uint64_t* mine, std::uint64_t* all, std::size_t words);
  // Returns 0 if the MPI has no communicators left.
  mpi::Handle duplicate();

  int wait(mpi::Handle& request);  // returns the MPI's error code
  // Waits until `done` returns true. `done` must not block.
  void wait(const std::function<bool()>& done);

  mpi::Handle comm() const { return comm_; }

 private:
  void throw_if_lost();

  mpi::Handle comm_;
  int rank_, size_;
  WaitHook& hook_;
  const FirstCall about_;
  LostPeers lost_;
};

// Collective: throws TransportError on all ranks if one of them has a reason.
void throw_if_any(Bootstrap& calls, const std::string& reason, const std::string& what,
                  const std::string& remedy);

// Blocking: waits, with all ranks, for a duplication of `comm` that the program has started.
// Returns the MPI's error code.
int await_duplicate(mpi::Handle comm, mpi::Handle& request, WaitHook& hook);

}  // namespace gradred
