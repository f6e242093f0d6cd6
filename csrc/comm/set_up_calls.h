// The collective calls of the MPI by which ranks set a communicator up, waited for like everything
// else: signals end them, and so do time limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "comm/call.h"
#include "liveness/first_calls.h"
#include "liveness/lost_peers.h"
#include "mpi/mpi.h"
#include "node/bootstrap.h"

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
  // 0 where the MPI has no communicators left.
  mpi::Handle duplicate();

  int wait(mpi::Handle& request);  // the MPI's code
  // Until `done`, which must not block, says so.
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

// Collective: throws TransportError on all ranks where one has a reason.
void throw_if_any(Bootstrap& calls, const std::string& reason, const std::string& what,
                  const std::string& remedy);

// Blocking: a duplication of `comm` that the program has started and now waits for, with all ranks.
// Returns the MPI's code.
int await_duplicate(mpi::Handle comm, mpi::Handle& request, WaitHook& hook);

}  // namespace gradred
