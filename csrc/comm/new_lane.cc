// How a persistent call gets a lane. Lanes on shared memory take a part of the memory that the
// ranks share. Others are set up as a duplicate of the communicator would be, with tags of their
// own, but without a communicator of the MPI, unless the MPI carries the call out.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "comm/communicator.h"
#include "comm/own_calls.h"
#include "comm/set_up/set_up.h"
#include "comm/set_up/sharing.h"
#include "comm/shutdown_handshake.h"
#include "families/mpi/family_mpi.h"
#include "node/memory/layout.h"

namespace gradred {

namespace {

RankNames names_of_lane(const CommLiveness& liveness) {
  RankNames names = liveness.names();
  names.call_it(RankNames::Carries::kPersistent);
  return names;
}

}  // namespace

std::shared_ptr<Communicator> Communicator::lane(const Call& call, bool one_order, WaitHook& hook) {
  // Some ranks may have arrays in device memory and others in host memory, so shapes may differ.
  struct LaneRequest {
    std::size_t at_most;
    CommLanes::Report lanes;
    LaneShape::Way way;
    bool one_order;
  };
  static_assert(sizeof(LaneRequest) <= Announcement::kDataBytes);
  const LaneShape own = lane_shape(by_tree(call));
  const LaneRequest mine{own.at_most, lanes_.report(), own.way, one_order};
  std::vector<LaneRequest> all(static_cast<std::size_t>(size()), mine);
  if (size() > 1) OwnCalls(*this, hook).allgather(&mine, sizeof mine, all.data());
  std::vector<CommLanes::Report> reports;
  LaneShape shape = own;
  for (const LaneRequest& request : all) {
    reports.push_back(request.lanes);
    shape.way = std::max(shape.way, request.way);
    shape.at_most = std::max(shape.at_most, request.at_most);
  }
  lanes_.receive(reports);
  if (std::ranges::all_of(all, &LaneRequest::one_order)) return nullptr;
  auto lane = std::static_pointer_cast<Communicator>(lanes_.take(shape));
  if (lane == nullptr) {
    std::unique_ptr<Communicator> made = new_lane(shape, hook);
    if (made == nullptr) return nullptr;
    lane = std::static_pointer_cast<Communicator>(lanes_.add(shape, std::move(made)));
  }
  lane->know();
  leave_if_left(*lane);
  return lane;
}

// That this rank's call needs.
LaneShape Communicator::lane_shape(const Call& call) const {
  using Way = LaneShape::Way;
  if (size() == 1) return {.at_most = LaneShape::class_of(0)};
  if (dispatch_.starts_on_node(call)) {
    constexpr std::size_t kLongestSum = 16;  // bytes that the mean of an integer adds
    const std::size_t each = call.averages_integers() ? kLongestSum : size_of(call.dtype);
    return {.at_most = LaneShape::class_of(call.count * each)};
  }
  if (node_only()) return {};
  const std::shared_ptr<const Plan> plan = agreed_.starts ? choice_.plan_for(call, false) : nullptr;
  const bool is_own =
      plan != nullptr && dispatch_.starts_by(*plan) && &family_of(*plan) != &mpi_family();
  if (!is_own) return {.way = Way::kMpi};
  const bool sends = family_of(*plan).sends(place()) || call.averages_integers();
  return {.way = node_path_.serves_all() && !sends ? Way::kMemory : Way::kMessages};
}

std::unique_ptr<Communicator> Communicator::new_lane(const LaneShape& shape, WaitHook& hook) {
  const std::uint64_t begin = now_ns();
  Settings settings = settings_;
  settings.deterministic = agreed_.deterministic;
  settings.profile = observer_.keeps_profile();
  std::unique_ptr<Communicator> made = shape.way == LaneShape::Way::kMemory
                                           ? lane_in_memory(shape, settings, hook)
                                           : lane_over_messages(shape, settings, hook);
  if (made == nullptr) return nullptr;
  made->ends_with_mpi_ = ends_with_mpi_ || !node_only();
  made->observe(begin, &observer_);
  return made;
}

std::unique_ptr<Communicator> Communicator::lane_in_memory(const LaneShape& shape,
                                                           const Settings& settings,
                                                           WaitHook& hook) {
  std::unique_ptr<NodeGroup> node;
  if (size() > 1) {
    // The lines of a call have left the caches if other lanes are used before it comes again. For
    // the first lanes rings see to it, as on the communicator (SharedPart::place()).
    constexpr std::uint32_t kWithRings = 4;
    constexpr std::size_t kShort = 8192, kLong = 1 << 20;
    const bool rings =
        lanes_with_rings_ < kWithRings && shape.at_most >= kShort && shape.at_most <= kLong;
    if (rings) ++lanes_with_rings_;
    std::string why_not;
    const std::size_t at_most = rings || shape.at_most == LaneShape::kAny ? 0 : shape.at_most;
    OwnCalls calls(*this, hook, names_of_lane(liveness_));
    node = make_group(calls, node_options(settings), why_not, at_most);
    if (node == nullptr) return nullptr;  // there is too little memory
  }
  auto made = std::make_unique<Communicator>(rank(), size(), settings, names_of_lane(liveness_),
                                             std::move(node));
  made->choice_.settle_as(choice_);
  return made;
}

std::unique_ptr<Communicator> Communicator::lane_over_messages(const LaneShape& shape,
                                                               const Settings& settings,
                                                               WaitHook& hook) {
  hook.long_work();
  try {
    std::shared_ptr<Duplicate> duplicate;
    if (shape.way == LaneShape::Way::kMpi) {
      SetUpCalls calls(handle(), rank(), size(), hook, liveness_.names());
      const mpi::Handle copy = calls.duplicate();
      if (copy == 0) return nullptr;
      duplicate = Registry::get().add_duplicate(copy, {}, 0);
    }
    const mpi::Handle comm = duplicate != nullptr ? duplicate->comm : handle();
    std::unique_ptr<Communicator> made(
        new Communicator(Member{comm, rank(), size(), false}, settings));
    made->own_duplicate_ = std::move(duplicate);
    return made->set_up_as_lane_of(*this, hook) ? std::move(made) : nullptr;
  } catch (...) {  // partly set up, which the peers do not know
    liveness_.fail(std::current_exception());
    throw;
  }
}

// Returns false on all ranks if it has less than `first` has.
bool Communicator::set_up_as_lane_of(Communicator& first, WaitHook& hook) {
  SetUpCalls calls(first.handle(), rank(), size(), hook, names_of_lane(first.liveness_));
  SetUp set_up(calls, settings_, first.choice_, 0);
  set_up.run();
  adopt(set_up);
  liveness_.open(std::move(set_up.found));
  const bool has_all = has_messages() == first.has_messages() &&
                       node_path_.serves_all() == first.node_path_.serves_all() &&
                       place().hosts_share_memory() == first.place().hosts_share_memory();
  if (!has_all) return false;
  if (path_ != nullptr) path_->transport().cut_messages_as(first.path_->transport());
  choice_.settle_as(first.choice_);
  begin_starting();
  return true;
}

bool Communicator::has_failed(Owner& one) {
  return static_cast<Communicator&>(one).liveness_.failed();
}

}  // namespace gradred
