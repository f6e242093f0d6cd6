// Set-up calls of ranks that have a communicator of gradred, and perhaps no working MPI any more.
#pragma once

#include <cstddef>
#include <utility>

#include "comm/communicator.h"
#include "node/memory/bootstrap.h"

namespace gradred {

// Makes the calls with blocking calls of the communicator itself.
class OwnCalls final : public Bootstrap {
 public:
  OwnCalls(Communicator& comm, WaitHook& hook) : OwnCalls(comm, hook, comm.liveness().names()) {}
  OwnCalls(Communicator& comm, WaitHook& hook, RankNames names)
      : comm_(comm), hook_(hook), names_(std::move(names)) {}

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  RankNames names() const override { return names_; }
  void barrier() override;
  void allgather(const void* mine, std::size_t bytes, void* all) override;

 private:
  Communicator& comm_;
  WaitHook& hook_;
  const RankNames names_;
};

}  // namespace gradred
