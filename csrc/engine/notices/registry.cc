#include "engine/notices/registry.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/errors.h"
#include "base/failure.h"
#include "base/signature.h"
#include "mpi/world_ranks.h"
#include "transport/mpi_transport.h"

namespace gradred {
namespace {

constexpr std::size_t kMostIdlePools = 4;
constexpr std::size_t kMostKeptDuplicates = 4;
constexpr int kMostIds = 4096;
constexpr int kMostReserved = 8;

int most_numbers() { return std::min(TagSpace::most_ids(largest_tag()), kMostIds); }

// One bit for each number of the window that exists.
std::uint64_t numbers_in(std::uint64_t window) {
  const int left = most_numbers() - static_cast<int>(window) * 64;
  return left >= 64 ? ~std::uint64_t{0} : left <= 0 ? 0 : (1ULL << left) - 1;
}

}  // namespace

// Never destroyed: callbacks of the MPI may run after static destructors.
Registry& Registry::get() {
  static auto* const registry = new Registry;
  return *registry;
}

Duplicate::~Duplicate() {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex_);
  registry.to_close_.emplace_back(comm, notices);
}

TagRange::~TagRange() {
  if (keeps_id) Registry::get().give_back_id(group, id);
}

std::shared_ptr<Duplicate> Registry::add_duplicate(mpi::Handle comm, std::vector<int> group,
                                                   std::uint64_t serial) {
  auto made = std::make_shared<Duplicate>();
  made->comm = comm;
  made->serial = serial;
  made->group = std::move(group);
  std::shared_ptr<Duplicate> dropped;  // released after the lock, which its destructor takes
  const std::lock_guard lock(mutex_);
  if (made->group.empty()) return made;
  duplicates_.push_back(made);
  kept_.push_front(made);
  if (kept_.size() > kMostKeptDuplicates) {
    dropped = std::move(kept_.back());
    kept_.pop_back();
  }
  return made;
}

std::vector<std::shared_ptr<Duplicate>> Registry::duplicates_over(const std::vector<int>& group) {
  // Declared before the lock, because the destructor of a last owner takes the lock.
  std::vector<std::shared_ptr<Duplicate>> all;
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

std::uint64_t Registry::new_serial() {
  const std::lock_guard lock(mutex_);
  return next_serial_++;
}

std::uint64_t Registry::group_key(mpi::Handle comm) {
  std::uint64_t key = mix(1, std::string_view("group"));
  for (const int rank : mpi::world_ranks(comm)) key = mix(key, static_cast<std::uint64_t>(rank));
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

void Registry::reap() {
  const std::unique_lock mine(closing_mutex_, std::try_to_lock);
  // Another thread is reaping; or a peer has failed, and the MPI may wait for it.
  if (!mine.owns_lock() || process_poisoned.load(std::memory_order_relaxed)) return;
  {
    const std::lock_guard lock(mutex_);
    closing_.splice(closing_.end(), to_close_);
  }
  closing_.remove_if([](Closing& closing) { return closing.advance(); });
  trim_pools();
}

void Registry::add_pool(const std::shared_ptr<Pool>& pool) {
  const std::lock_guard lock(mutex_);
  std::erase(pools_, pool);
  pools_.push_front(pool);
}

std::vector<std::shared_ptr<Pool>> Registry::pools_over(std::span<const int> world_ranks) {
  std::vector<std::shared_ptr<Pool>> found;
  if (world_ranks.empty()) return found;  // some ranks belong to other programs
  const std::lock_guard lock(mutex_);
  for (const auto& pool : pools_) {
    if (pool->find(world_ranks) && pool->knows_this_process()) found.push_back(pool);
  }
  return found;
}

void Registry::trim_pools() {
  std::list<std::shared_ptr<Pool>> dropped;  // unmapped after the lock is released
  const std::lock_guard lock(mutex_);
  std::size_t idle = 0;
  for (auto pool = pools_.begin(); pool != pools_.end();) {
    const auto next = std::next(pool);
    (*pool)->trim();
    const bool in_use = pool->use_count() > 1;
    if (!in_use && ++idle > kMostIdlePools) dropped.splice(dropped.end(), pools_, pool);
    pool = next;
  }
}

std::uint64_t Registry::number_windows() {
  return (static_cast<std::uint64_t>(most_numbers()) + 63) / 64;
}

void Registry::Numbers::take(int id) {
  const auto window = static_cast<std::size_t>(id) / 64;
  const std::uint64_t bit = std::uint64_t{1} << id % 64;
  if (window >= words.size()) words.resize(window + 1);
  if ((words[window] & bit) != 0) return;
  words[window] |= bit;
  ++used;
}

void Registry::Numbers::give_back(int id) {
  const auto window = static_cast<std::size_t>(id) / 64;
  const std::uint64_t bit = std::uint64_t{1} << id % 64;
  if ((in(window) & bit) == 0) return;
  words[window] &= ~bit;
  --used;
}

std::uint64_t Registry::free_numbers(const std::vector<int>& group, std::uint64_t window) {
  const std::lock_guard lock(mutex_);
  const auto own = ids_.find(group);
  return numbers_in(window) & (own != ids_.end() ? ~own->second.in(window) : ~std::uint64_t{0});
}

std::uint64_t Registry::first_window(const std::vector<int>& group) {
  const std::uint64_t windows = number_windows();
  const std::lock_guard lock(mutex_);
  const auto own = ids_.find(group);
  std::uint64_t window = 0;
  while (own != ids_.end() && window < windows &&
         (numbers_in(window) & ~own->second.in(window)) == 0) {
    ++window;
  }
  return window;
}

std::uint64_t Registry::reserve_numbers(const std::vector<int>& group, std::uint64_t window) {
  std::uint64_t reserved = 0;
  const std::lock_guard lock(mutex_);
  Numbers& own = ids_[group];
  std::uint64_t free = numbers_in(window) & ~own.in(window);
  for (int count = 0; free != 0 && count < kMostReserved; free &= free - 1, ++count) {
    own.take(static_cast<int>(window) * 64 + std::countr_zero(free));
    reserved |= free & (~free + 1);
  }
  return reserved;
}

void Registry::keep_id(const std::vector<int>& group, int id) {
  const std::lock_guard lock(mutex_);
  ids_[group].take(id);
}

void Registry::give_back_id(const std::vector<int>& group, int id) {
  const std::lock_guard lock(mutex_);
  const auto own = ids_.find(group);
  if (own == ids_.end()) return;
  own->second.give_back(id);
  if (own->second.used == 0) ids_.erase(own);
}

}  // namespace gradred
