// Set-up calls among the ranks of one host, for a communicator over several hosts.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/set_up/set_up_calls.h"
#include "node/memory/bootstrap.h"
#include "transport/mpi_transport.h"

namespace gradred {

// Uses messages among these ranks alone, because other hosts may need more or fewer of them. No
// operation of the communicator may have begun: the messages use the tag of the first one.
class HostCalls final : public Bootstrap {
 public:
  // `members`: ranks of the communicator, the calling one among them.
  HostCalls(SetUpCalls& calls, MpiTransport& transport, std::vector<int> members,
            const RankNames& names);

  int rank() const override { return place_; }
  int size() const override { return static_cast<int>(members_.size()); }
  RankNames names() const override { return names_; }
  void barrier() override;
  void allgather(const void* mine, std::size_t bytes, void* all) override;

 private:
  SetUpCalls& calls_;
  MpiTransport& transport_;
  const std::vector<int> members_;
  const int place_;
  const RankNames names_;
};

}  // namespace gradred
