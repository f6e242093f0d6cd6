#include "named/memory_in_flight.h"

#include <algorithm>
#include <iterator>

namespace gradred {

// The first use in the table that ends behind the begin of `memory`.
MemoryInFlight::Table::iterator MemoryInFlight::first_in(const MemoryUse& memory) {
  const auto next = apart_.lower_bound(memory.begin);
  if (next == apart_.begin()) return next;
  const auto before = std::prev(next);
  return before->second.memory.end > memory.begin ? before : next;
}

void MemoryInFlight::drop_unused() {
  std::erase_if(apart_, [](const auto& one) { return one.second.by == nullptr; });
  most_apart_ = std::max<std::size_t>(1024, 2 * apart_.size());
}

void MemoryInFlight::add(MemoryUse& memory, const NamedOperation& by, Shared& found) {
  bool overlaps = false;
  const auto see = [&](const Use& use) {
    overlaps = true;
    if (!memory.writes && !use.memory.writes) return;
    if (use.by == &by) {
      if (use.memory.array != memory.array) found.itself = {use.memory.array, memory.array};
    } else {
      (use.by->all() == by.all() ? found.with_own : found.with_others) = true;
    }
  };
  auto next = first_in(memory);
  const bool is_known = next != apart_.end() && next->second.by == nullptr &&
                        next->first == memory.begin && next->second.memory.end == memory.end;
  while (!is_known && next != apart_.end() && next->first < memory.end) {
    if (next->second.by != nullptr) see(next->second);
    next = next->second.by != nullptr ? std::next(next) : apart_.erase(next);
  }
  for (const Use& use : overlapping_) {
    if (use.memory.overlaps(memory)) see(use);
  }
  if (overlaps) return overlapping_.push_back({memory, &by});
  if (!is_known && apart_.size() > most_apart_) {
    drop_unused();
    next = apart_.lower_bound(memory.begin);
  }
  if (!is_known) next = apart_.emplace_hint(next, memory.begin, Use{memory, nullptr});
  next->second.memory.writes = memory.writes;
  next->second.by = &by;
  memory.held_by = &next->second.by;
}

MemoryInFlight::Shared MemoryInFlight::add(NamedOperation& operation) {
  Shared found;
  const std::lock_guard lock(mutex_);
  operation.added_as_ = ++added_;
  for (MemoryUse& memory : operation.uses_) add(memory, operation, found);
  return found;
}

void MemoryInFlight::remove(NamedOperation& operation) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(operation.added_as_, 0) == 0) return;
  for (MemoryUse& memory : operation.uses_) {
    if (memory.held_by != nullptr) *std::exchange(memory.held_by, nullptr) = nullptr;
  }
  if (overlapping_.empty()) return;
  std::erase_if(overlapping_, [&](const Use& use) { return use.by == &operation; });
}

std::string MemoryInFlight::before(const NamedOperation& operation) {
  std::string name;
  const std::lock_guard lock(mutex_);
  const auto see = [&](const MemoryUse& memory, const Use& use) {
    const bool is_before = use.by != nullptr && use.by->all() != operation.all() &&
                           use.by->added_as_ < operation.added_as_;
    if (is_before && (memory.writes || use.memory.writes)) name = use.by->quoted();
  };
  for (const MemoryUse& memory : operation.uses()) {
    for (auto next = first_in(memory); next != apart_.end() && next->first < memory.end; ++next) {
      see(memory, next->second);
    }
    for (const Use& use : overlapping_) {
      if (use.memory.overlaps(memory)) see(memory, use);
    }
  }
  return name;
}

MemoryInFlight& memory_in_flight() {
  static auto& made = *new MemoryInFlight;  // never freed: threads may outlive static objects
  return made;
}

}  // namespace gradred
