// What the ranks of a communicator find out together in its first blocking call: what they agree
// on, where they are, which memory they share, and which tags their messages use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "calls/plan_choice.h"
#include "calls/settings.h"
#include "comm/set_up/offer.h"
#include "comm/set_up/set_up_calls.h"
#include "engine/notices/comm_liveness.h"
#include "engine/notices/registry.h"
#include "families/messages/path.h"
#include "node/group/group.h"

namespace gradred {

// What the ranks have agreed on, which is rank 0's value unless a comment says otherwise, and what
// they have found.
struct Established {
  PlanChoice::Wish wish{};  // this rank's, before the agreement
  std::uint64_t key = 0;
  bool deterministic = false, tunes = false, profiles = false;
  bool threads_drive = false;   // thread_may_drive() on all ranks
  bool starts_on_node = false;  // may_start_on_node() on all ranks
  Place place{};
  bool spins = false;  // each rank of this host has a core of its own
  std::unique_ptr<TagRange> tag_range{};
  std::unique_ptr<SchedulePath> path{};
  std::unique_ptr<NodeGroup> node{};  // of all ranks
  std::unique_ptr<NodeGroup> host{};  // over several hosts: of this host's ranks
  CommLiveness::Found found{};
};

class SetUp final : public Established {
 public:
  // Begins with what this rank wants and knows. `first_bytes`: of the call that sets up.
  SetUp(SetUpCalls& calls, const Settings& settings, const PlanChoice& choice,
        std::size_t first_bytes)
      : Established{
            .wish = choice.wish, .deterministic = settings.deterministic, .place = choice.place},
        calls_(calls),
        settings_(settings),
        first_bytes_(first_bytes) {}

  // Collective: one message, and more only if the ranks have too little in common. If it throws,
  // the results reached so far remain, because other ranks may know of them.
  void run();

 private:
  SettingsOffer offered_settings() const;
  void agree_on_settings(const std::vector<SettingsOffer>& all);
  void make_path(std::unique_ptr<TagRange> range);
  void meet_ranks_of_node();
  void find_topology();
  void share_memory(const std::vector<MemoryOffer>& all);
  void share_memory_on_hosts(const std::string& why_not);
  void add_local_peer(int rank, const ProcessId& process);
  void throw_if_deterministic(const std::string& why_no_memory) const;

  SetUpCalls& calls_;
  const Settings& settings_;
  const std::size_t first_bytes_;
};

}  // namespace gradred
