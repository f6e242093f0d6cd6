#include "comm/lanes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "node/memory/layout.h"

namespace gradred {

std::size_t LaneShape::class_of(std::size_t bytes) {
  // From here on all calls use as many chunks as a group has.
  constexpr std::size_t kLargest = std::size_t{1} << 20;
  if (bytes <= kShortSlot) return kShortSlot;
  return std::bit_ceil(std::clamp(bytes, kPage, kLargest));
}

void CommLanes::Kept::put(std::uint32_t number, Owner* lane) {
  {
    const std::lock_guard lock(mutex);
    if (!closed) {
      lanes.emplace(number, lane);
      unreported.push_back(number);
      return;
    }
  }
  of.destroy(lane);
}

Owner* CommLanes::Kept::get(std::uint32_t number) {
  const std::lock_guard lock(mutex);
  return lanes.extract(number).mapped();
}

CommLanes::~CommLanes() {
  std::map<std::uint32_t, Owner*> left;
  {
    const std::lock_guard lock(kept_->mutex);
    kept_->closed = true;
    left.swap(kept_->lanes);
  }
  for (const auto& [number, lane] : left) kept_->of.destroy(lane);
}

CommLanes::Report CommLanes::report() {
  Report mine;
  const std::lock_guard lock(kept_->mutex);
  std::deque<std::uint32_t>& unreported = kept_->unreported;
  for (std::uint32_t& place : mine.let_go) {
    if (unreported.empty()) break;
    const bool failed = kept_->of.has_failed(*kept_->lanes.at(unreported.front()));
    place = unreported.front() | (failed ? Report::kFailed : 0);
    unreported.pop_front();
  }
  return mine;
}

void CommLanes::receive(std::span<const Report> all) {
  for (const Report& one : all) {
    for (const std::uint32_t place : one.let_go) {
      if (place == 0) break;
      const std::uint32_t number = place & ~Report::kFailed;
      Entry& entry = entries_.at(number);
      entry.failed |= (place & Report::kFailed) != 0;
      if (++entry.let_go_by < all.size()) continue;
      if (!entry.failed) {
        free_.emplace(entry.shape, number);
        continue;
      }
      entries_.erase(number);
      kept_->of.destroy(kept_->get(number));
    }
  }
}

// The smallest that is large enough.
std::shared_ptr<Owner> CommLanes::take(const LaneShape& wanted) {
  const auto found = free_.lower_bound({wanted, 0});
  if (found == free_.end() || found->first.way != wanted.way) return nullptr;
  const std::uint32_t number = found->second;
  free_.erase(found);
  entries_.at(number).let_go_by = 0;
  return lend(number, kept_->get(number));
}

std::shared_ptr<Owner> CommLanes::add(const LaneShape& shape, std::unique_ptr<Owner> made) {
  const std::uint32_t number = ++made_;
  entries_.emplace(number, Entry{.shape = shape});
  return lend(number, made.release());
}

std::vector<Owner*> CommLanes::let_go() const {
  const std::lock_guard lock(kept_->mutex);
  std::vector<Owner*> found;
  for (const auto& [number, lane] : kept_->lanes) found.push_back(lane);
  return found;
}

std::shared_ptr<Owner> CommLanes::lend(std::uint32_t number, Owner* lane) {
  return {lane, [kept = kept_, number](Owner* last) { kept->put(number, last); }};
}

}  // namespace gradred
