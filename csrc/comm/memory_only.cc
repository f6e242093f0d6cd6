// Communicators that have shared memory and nothing else: the MPI knows nothing of their ranks.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/node_call.h"
#include "comm/sharing.h"

namespace gradred {

std::shared_ptr<Communicator> Communicator::connect(Bootstrap& calls) {
  const Settings& settings = gradred::settings();
  const int size = calls.size();
  if (size == 1) {
    return std::make_shared<Communicator>(0, 1, settings, calls.names(), nullptr);
  }
  std::vector<MemoryOffer::Wish> wishes(static_cast<std::size_t>(size));
  const MemoryOffer::Wish mine = memory_wish(settings);
  calls.allgather(&mine, sizeof mine, wishes.data());
  std::string why_not = why_no_memory(wishes, false);
  std::unique_ptr<NodeGroup> node;
  if (why_not.empty()) node = NodeGroup::create(calls, node_options(settings), why_not);
  if (node == nullptr) {
    throw UsageError("connect: the ranks share no memory (" + why_not +
                     "), and without an MPI there is nothing else. Start them with gradred run, "
                     "which serves several hosts.");
  }
  return std::make_shared<Communicator>(calls.rank(), size, settings, calls.names(),
                                        std::move(node));
}

Communicator::Communicator(int rank, int size, const Settings& settings, RankNames names,
                           std::unique_ptr<NodeGroup> node)
    : user_(mpi::get().is.comm_null),
      rank_(rank),
      size_(size),
      node_only_(true),
      settings_(settings),
      deterministic_(settings.deterministic),
      direct_(true),
      starts_in_memory_(true),
      set_up_(true),
      choice_(size_, {}),
      device_workspace_(rank, size, settings.ipc_bytes),
      liveness_(user_, rank_, size_, operation_log_) {
  const bool spins = node && node->spins();
  node_path_.open(std::move(node), nullptr, spins);
  liveness_.open({.names = std::move(names), .node = node_path_.node()});
  choice_.place.why_no_messages = choice_.place.why_no_mpi = kMemoryOnly;
  choice_.settle(assumed_figures());
}

}  // namespace gradred
