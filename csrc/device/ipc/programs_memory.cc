#include "device/ipc/programs_memory.h"

#include <iterator>

namespace gradred::device {
namespace {

constexpr std::uint64_t kSeldom = 1024;  // calls between two checks whether allocations were freed

}  // namespace

// Makes one query of the driver, the only one for a call whose arrays are known.
ProgramsMemory::Range ProgramsMemory::ask(SharedArrays::Array array) const {
  if (array.bytes == 0) return {};
  constexpr int kWanted[] = {kBufferId, kIsIpcCapable, kRangeStart, kRangeBytes};
  unsigned capable = 0;
  Range found;
  void* values[] = {&found.id, &capable, &found.begin, &found.bytes};
  const Address at = address_of(array.at);
  const ScopedContext scope = context_.scope();
  const Result code = context_.driver().call.PointerGetAttributes(4, kWanted, values, at);
  const bool exports = code == kSuccess && (capable & 0xff) != 0 && found.id != 0;
  const bool holds = at >= found.begin && array.bytes <= found.bytes &&
                     at - found.begin <= found.bytes - array.bytes;
  return exports && holds ? found : Range();
}

SharedArrays::Places ProgramsMemory::find(SharedArrays::Array input, SharedArrays::Array result) {
  const Range of_input = ask(input);
  const Range of_result = input == result ? of_input : ask(result);
  if (of_input.bytes == 0 && of_result.bytes == 0) return {};
  const std::uint64_t turn = [this] {
    const std::lock_guard lock(mutex_);
    if (++turns_ % kSeldom == 0) end_freed();
    return turns_;
  }();
  return {place(of_input, input, turn), place(of_result, result, turn)};
}

bool ProgramsMemory::is_new(SharedArrays::Array array) {
  const Range range = ask(array);
  const std::lock_guard lock(mutex_);
  return range.bytes != 0 && known(range) == nullptr && allocations_.size() < kMost;
}

SharedPlace ProgramsMemory::place(const Range& range, SharedArrays::Array array,
                                  std::uint64_t turn) {
  if (range.bytes == 0) return {};
  const std::uint64_t offset = address_of(array.at) - range.begin;
  const auto found = [&](const Allocation& one) {
    return one.handle ? SharedPlace(one.number, offset) : SharedPlace();
  };
  {
    const std::lock_guard lock(mutex_);
    if (const Allocation* const one = known(range)) return found(*one);
    if (!is_seen_again(range, turn) || !has_room()) return {};
  }
  const std::optional<Allocation> made = exported(range);
  return made ? found(*made) : SharedPlace();
}

bool ProgramsMemory::is_seen_again(const Range& range, std::uint64_t turn) {
  Seen& last = seen_[range.id % seen_.size()];
  if (last.id == range.id) return last.turn != turn;
  last = {range.id, turn};
  return false;
}

// Another allocation in the same range must have been freed.
const ProgramsMemory::Allocation* ProgramsMemory::known(const Range& range) {
  auto one = allocations_.upper_bound(range.begin);
  if (one != allocations_.begin()) --one;
  while (one != allocations_.end() && one->first < range.begin + range.bytes) {
    const Range& other = one->second.range;
    if (other == range) return &one->second;
    one = other.begin + other.bytes > range.begin ? end(one) : std::next(one);
  }
  return nullptr;
}

ProgramsMemory::Allocations::iterator ProgramsMemory::end(Allocations::iterator one) {
  if (exported_.erase(one->second.number) > 0) ended_.fetch_add(1, std::memory_order_release);
  return allocations_.erase(one);
}

// For each new allocation, looks for those that were freed. If the table is full of allocations in
// use, looks only seldom.
bool ProgramsMemory::has_room() {
  if (allocations_.size() < kMost || refused_++ % kSeldom == 0) end_freed();
  return allocations_.size() < kMost && numbers_ < SharedPlace::kEnd;
}

void ProgramsMemory::end_freed() {
  constexpr int kWanted[] = {kBufferId};
  const ScopedContext scope = context_.scope();
  for (auto one = allocations_.begin(); one != allocations_.end();) {
    std::uint64_t id = 0;
    void* values[] = {&id};
    const Result code = context_.driver().call.PointerGetAttributes(1, kWanted, values, one->first);
    const bool freed = code == kSuccess && id != one->second.range.id;
    one = freed ? end(one) : std::next(one);
  }
}

// Exports the whole allocation, so that what a peer opens begins where the allocation does. No
// value: impossible now.
std::optional<ProgramsMemory::Allocation> ProgramsMemory::exported(const Range& range) {
  std::optional<IpcHandle> handle;
  const bool tried = gate_.while_none_is_open([&] {
    const ScopedContext scope = context_.scope();
    IpcHandle made;
    if (context_.driver().call.IpcGetMemHandle(&made, range.begin) == kSuccess) handle = made;
  });
  if (!tried) return std::nullopt;
  const std::lock_guard lock(mutex_);
  // Another thread's call has exported it meanwhile.
  if (const Allocation* const one = known(range)) return *one;
  const Allocation made{range, numbers_++, handle};
  if (handle) exported_[made.number] = range.begin;
  allocations_[range.begin] = made;
  return made;
}

std::optional<ExportedBlock> ProgramsMemory::block_of(std::uint64_t allocation) const {
  const std::lock_guard lock(mutex_);
  const auto found = exported_.find(allocation);
  if (found == exported_.end()) return std::nullopt;
  const Allocation& one = allocations_.at(found->second);
  return ExportedBlock{*one.handle, one.range.begin, one.range.bytes};
}

bool ProgramsMemory::has(std::uint64_t allocation) const {
  const std::lock_guard lock(mutex_);
  return exported_.contains(allocation);
}

}  // namespace gradred::device
