// Communicators that have shared memory and nothing else: the MPI does not know their ranks.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "calls/place_among_all.h"
#include "calls/why_not.h"
#include "comm/communicator.h"
#include "comm/set_up/sharing.h"
#include "comm/shutdown_handshake.h"
#include "families/families.h"
#include "liveness/shown_ranks.h"
#include "liveness/status_page.h"
#include "observe/process_trace.h"

namespace gradred {

std::shared_ptr<Communicator> Communicator::connect(Bootstrap& calls, std::string& why_no_memory) {
  const std::uint64_t begin = now_ns();
  Settings settings = gradred::settings();
  const int size = calls.size();
  if (size == 1) {
    return in_memory(0, 1, settings, calls.names(), nullptr, begin);
  }
  // Shows this rank as one that no launcher of an MPI knows.
  if (status_file() < 0) {
    const auto [rank, of] = place_among_all(calls.rank(), size);
    show_rank({.pid = getpid(), .rank = rank, .size = of, .spawned = true});
  }
  struct Wishes {
    MemoryOffer::Wish memory;
    std::uint64_t profile;
  };
  std::vector<Wishes> all(static_cast<std::size_t>(size));
  const Wishes mine{memory_wish(settings), settings.profile ? 1U : 0U};
  calls.allgather(&mine, sizeof mine, all.data());
  settings.profile = all.front().profile != 0;
  std::vector<MemoryOffer::Wish> wishes;
  std::ranges::transform(all, std::back_inserter(wishes), &Wishes::memory);
  why_no_memory = gradred::why_no_memory(wishes);
  std::unique_ptr<NodeGroup> node;
  if (why_no_memory.empty()) {
    node = NodeGroup::create(calls, node_options(settings), why_no_memory);
  }
  if (node == nullptr) return nullptr;
  return in_memory(calls.rank(), size, settings, calls.names(), std::move(node), begin);
}

std::shared_ptr<Communicator> Communicator::in_memory(int rank, int size, const Settings& settings,
                                                      RankNames names,
                                                      std::unique_ptr<NodeGroup> node,
                                                      std::uint64_t began_ns) {
  auto made =
      std::make_shared<Communicator>(rank, size, settings, std::move(names), std::move(node));
  made->observe(began_ns);
  made->know();
  leave_if_left(*made);
  return made;
}

void Communicator::observe(std::uint64_t began_ns, const Observer* first) {
  observer_.profile(settings_.profile);
  if (first != nullptr) {
    observer_.log_results_as(*first);
  } else {
    observer_.log_results(ResultLog::get(settings_, rank(), size()));
  }
  observer_.open(process_trace(settings_, rank(), size()), began_ns);
  direct_ = may_be_direct();
}

Communicator::Communicator(int rank, int size, const Settings& settings, RankNames names,
                           std::unique_ptr<NodeGroup> node)
    : member_{mpi::get().is.comm_null, rank, size, true},
      settings_(settings),
      direct_(true),
      choice_(size, {}, plan_sources()),
      device_workspace_(rank, size, settings.ipc_bytes, settings.ipc_programs),
      liveness_(member_.comm, rank, size, operation_log_) {
  agreed_.deterministic = settings.deterministic;
  agreed_.starts_in_memory = true;
  agreed_.set_up = agreed_.starts = true;
  const bool spins = node && node->spins();
  node_path_.open(std::move(node), nullptr, spins);
  liveness_.open({.names = std::move(names), .node = node_path_.node()});
  choice_.place.why_no_messages = choice_.place.why_no_mpi = kMemoryOnly;
  choice_.settle(assumed_figures());
}

}  // namespace gradred
