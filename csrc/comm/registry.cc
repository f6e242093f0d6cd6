#include "comm/registry.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "base/errors.h"
#include "base/news.h"
#include "comm/communicator.h"
#include "comm/members.h"
#include "transport/mpi.h"

namespace gradred {
namespace {

constexpr std::size_t kMostOffered = 6;
constexpr int kMostSegments = 64;
constexpr int kIdWords = 64;
constexpr int kMostIds = 64 * kIdWords;

// What the leader, rank 0, proposes to the others.
struct Proposal {
  std::int64_t id = -1;      // -1: no tags left
  std::int64_t serial = 0;   // for a new duplicate
  std::int64_t offered = 0;  // how many of the serials below
  std::array<std::int64_t, kMostOffered> serials{};
};

int no_copy(mpi::Handle, int, void*, void*, void*, int* flag) {
  *flag = 0;  // a duplicate of the user's is a communicator of its own
  return 0;
}

int on_delete(mpi::Handle, int, void* value, void*) {
  Communicator::detach(value);
  return 0;
}

}  // namespace

int new_attribute(DeleteAttribute* on_delete) {
  int key = 0;
  mpi::get().check(mpi::get().call.Comm_create_keyval(no_copy, on_delete, &key, nullptr),
                   "MPI_Comm_create_keyval");
  return key;
}

std::optional<std::string> lost_member(mpi::Handle comm) {
  const RankNames names(Registry::get().world_ranks(comm));
  if (auto ended = ended_among(known_members(comm), names)) return ended;
  if (!any_news()) return std::nullopt;
  const auto failure = failure_among(names.world_ranks());
  if (!failure) return std::nullopt;
  const auto& [rank, said] = *failure;
  return names.of(rank) + said;
}

std::optional<std::string> left_member(mpi::Handle comm) {
  const RankNames names(Registry::get().world_ranks(comm));
  return left_among(known_members(comm), names);
}

Duplicate::~Duplicate() {
  Registry& registry = Registry::get();
  const int largest = registry.largest_tag();
  const int tag = TagSpace::make(TagSpace::most_ids(largest), largest).tag(0);  // of no id
  const std::lock_guard lock(registry.mutex_);
  registry.to_close_.emplace_back(comm, notices, tag);
}

Lane::~Lane() {
  if (keeps_id) Registry::get().give_back_id(group, id);
}

Registry& Registry::get() {
  static auto* registry =
      new Registry;  // MPI's callbacks at exit may come after static destructors
  return *registry;
}

std::unique_ptr<Lane> Registry::agree(SetUpCalls& calls) {
  reap();
  const std::vector<int> group = world_ranks(calls.comm());
  const std::vector<std::shared_ptr<Duplicate>> mine = known(group);

  const Ids mine_free = free_ids(group);
  Ids free(kIdWords);
  calls.band(mine_free.data(), free.data(), kIdWords);
  Proposal proposal;
  if (calls.rank() == 0) {
    proposal.id = reserve_id(group, free);
    const std::lock_guard lock(mutex_);
    proposal.serial = static_cast<std::int64_t>(next_serial_++);
    proposal.offered = static_cast<std::int64_t>(std::min(mine.size(), kMostOffered));
    for (std::size_t i = 0; i < static_cast<std::size_t>(proposal.offered); ++i) {
      proposal.serials[i] = static_cast<std::int64_t>(mine[i]->serial);
    }
  }
  calls.bcast(&proposal, sizeof proposal);
  auto lane = std::make_unique<Lane>();
  if (proposal.id < 0) return nullptr;
  lane->id = static_cast<int>(proposal.id);
  lane->group = group;
  lane->keeps_id = true;
  keep_id(group, lane->id);

  // A duplicate serves if every rank still has it; `mine` keeps it alive until that is known.
  std::uint64_t have = 0, common = 0;
  std::array<std::shared_ptr<Duplicate>, kMostOffered> offered{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(proposal.offered); ++i) {
    for (const auto& candidate : mine) {
      if (candidate->serial != static_cast<std::uint64_t>(proposal.serials[i])) continue;
      have |= 1ULL << i;
      offered[i] = candidate;
    }
  }
  calls.band(&have, &common, 1);
  if (common != 0) {
    lane->duplicate = offered[static_cast<std::size_t>(std::countr_zero(common))];
  } else {
    lane->duplicate = duplicate(calls, group, static_cast<std::uint64_t>(proposal.serial));
  }
  return lane->duplicate ? std::move(lane) : nullptr;
}

std::shared_ptr<Duplicate> Registry::duplicate(SetUpCalls& calls, std::vector<int> group,
                                               std::uint64_t serial) {
  const mpi::Handle copy = calls.duplicate();
  if (copy == 0) return nullptr;
  auto made = std::make_shared<Duplicate>();
  made->comm = copy;
  made->serial = serial;
  made->group = std::move(group);
  const std::lock_guard lock(mutex_);
  if (!made->group.empty()) duplicates_.push_back(made);
  return made;
}

std::vector<std::shared_ptr<Duplicate>> Registry::known(const std::vector<int>& group) {
  std::vector<std::shared_ptr<Duplicate>>
      all;  // outlives the lock: a last owner's destructor takes it
  {
    const std::lock_guard lock(mutex_);
    duplicates_.remove_if([](const auto& entry) { return entry.expired(); });
    for (const auto& entry : duplicates_) {
      if (auto duplicate = entry.lock()) all.push_back(std::move(duplicate));
    }
  }
  std::erase_if(all, [&](const auto& entry) { return entry->group != group; });
  return all;
}

std::vector<int> Registry::world_ranks(mpi::Handle comm) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle group = 0, world = 0;
  int size = 0;
  mpi.check(mpi.call.Comm_group(comm, &group), "MPI_Comm_group");
  mpi.check(mpi.call.Comm_group(mpi.is.comm_world, &world), "MPI_Comm_group");
  mpi.check(mpi.call.Group_size(group, &size), "MPI_Group_size");
  std::vector<int> ranks(static_cast<std::size_t>(size)), translated(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  mpi.check(mpi.call.Group_translate_ranks(group, size, ranks.data(), world, translated.data()),
            "MPI_Group_translate_ranks");
  mpi.call.Group_free(&group);
  mpi.call.Group_free(&world);
  // Ranks from outside MPI_COMM_WORLD (spawned, connected) have no common name.
  if (std::ranges::find(translated, mpi.is.undefined) != translated.end()) translated.clear();
  return translated;
}

std::uint64_t Registry::group_key(mpi::Handle comm) {
  std::uint64_t key = mix(1, std::string_view("group"));
  for (const int rank : world_ranks(comm)) key = mix(key, static_cast<std::uint64_t>(rank));
  return key | 1;
}

std::uint64_t Registry::count_on_mpi(std::uint64_t group) {
  const std::lock_guard lock(mutex_);
  return ++on_mpi_[group];
}

std::map<std::uint64_t, std::uint64_t> Registry::counts_on_mpi() {
  const std::lock_guard lock(mutex_);
  return on_mpi_;
}

void Registry::remember(int world_rank, const ProcessId& process) {
  const std::lock_guard lock(mutex_);
  processes_[world_rank] = process;
}

Neighbours Registry::known_among(std::span<const int> world_ranks) {
  const std::lock_guard lock(mutex_);
  Neighbours known;
  for (const int rank : world_ranks) {
    if (const auto found = processes_.find(rank); found != processes_.end()) {
      known.emplace_back(rank, found->second);
    }
  }
  return known;
}

void Registry::reap() {
  const std::unique_lock mine(closing_mutex_, std::try_to_lock);
  // Another thread is at it; or a peer has failed, and the MPI may wait for it.
  if (!mine.owns_lock() || process_poisoned.load(std::memory_order_relaxed)) return;
  {
    const std::lock_guard lock(mutex_);
    closing_.splice(closing_.end(), to_close_);
  }
  closing_.remove_if([](Closing& closing) { return closing.advance(); });
}

int Registry::keyval() {
  const std::lock_guard lock(mutex_);
  if (!keyval_) keyval_ = new_attribute(on_delete);
  return *keyval_;
}

int Registry::largest_tag() {
  const std::lock_guard lock(mutex_);
  if (!largest_tag_) {
    const mpi::Mpi& mpi = mpi::get();
    int* bound = nullptr;
    int found = 0;
    mpi.check(mpi.call.Comm_get_attr(mpi.is.comm_world, mpi.is.tag_ub, &bound, &found),
              "MPI_Comm_get_attr");
    largest_tag_ = found != 0 && bound != nullptr ? *bound : 32767;
  }
  return *largest_tag_;
}

int Registry::thread_level() {
  int level = 0;
  mpi::get().check(mpi::get().call.Query_thread(&level), "MPI_Query_thread");
  return level;
}

bool Registry::may_add_segment() {
  const std::lock_guard lock(mutex_);
  return segments_ < kMostSegments;
}

void Registry::count_segment(int change) {
  const std::lock_guard lock(mutex_);
  segments_ += change;
}

Registry::Ids Registry::free_ids(const std::vector<int>& group) {
  const std::lock_guard lock(mutex_);
  Ids free(kIdWords, ~std::uint64_t{0});
  if (const auto own = ids_.find(group); own != ids_.end()) {
    for (const int id : own->second) free[static_cast<std::size_t>(id) / 64] &= ~(1ULL << id % 64);
  }
  return free;
}

// In the leader: another thread may just have reserved one for the same group.
int Registry::reserve_id(const std::vector<int>& group, const Ids& free_on_all_ranks) {
  const int most = std::min(TagSpace::most_ids(largest_tag()), kMostIds);
  const std::lock_guard lock(mutex_);
  std::set<int>& own = ids_[group];
  for (int id = 0; id < most; ++id) {
    const bool free = (free_on_all_ranks[static_cast<std::size_t>(id) / 64] >> id % 64 & 1) != 0;
    if (free && own.insert(id).second) return id;
  }
  return -1;
}

void Registry::keep_id(const std::vector<int>& group, int id) {
  const std::lock_guard lock(mutex_);
  ids_[group].insert(id);
}

void Registry::give_back_id(const std::vector<int>& group, int id) {
  const std::lock_guard lock(mutex_);
  const auto own = ids_.find(group);
  if (own == ids_.end()) return;
  own->second.erase(id);
  if (own->second.empty()) ids_.erase(own);
}

}  // namespace gradred
