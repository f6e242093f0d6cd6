#include "node/memory/pool.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/errors.h"
#include "liveness/local_peers.h"
#include "node/memory/layout.h"

namespace gradred {
namespace {

// Parts of the largest size: so many for rank 0, and so many for all other leaders together, whose
// groups are usually smaller. MPICH has about so many communicators. Addresses may be limited.
constexpr std::size_t kFewParts = 16, kMostParts = 2048;
constexpr std::size_t kMostAddresses = std::size_t{8} << 30;
constexpr std::size_t kMostIdleBytes = std::size_t{8} << 20;
constexpr std::size_t kMostWholeParts = 64;  // of the largest size, or as many bytes
constexpr std::size_t kLooks = 16;

std::size_t huge_pages(std::size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

// Small rooms lie close to each other.
bool are_small(std::size_t room_bytes) { return room_bytes <= kHugePage / 2; }

bool is_limited(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

std::size_t parts_of(std::size_t bytes) {
  if (is_limited(RLIMIT_AS) || is_limited(RLIMIT_FSIZE)) return kFewParts;
  return std::clamp(kMostAddresses / bytes, kFewParts, kMostParts);
}

}  // namespace

std::shared_ptr<Pool> Pool::create(Bootstrap& bootstrap, std::size_t line_bytes,
                                   std::size_t room_bytes, std::string& reason) {
  const std::size_t part = huge_pages(room_bytes) + line_bytes;
  const std::size_t region = huge_pages(parts_of(part) * part);
  auto segment = Segment::create(bootstrap, kHugePage + 2 * region, reason);
  if (segment == nullptr) return nullptr;
  return std::shared_ptr<Pool>(new Pool(std::move(segment), room_bytes, bootstrap));
}

Pool::Pool(std::shared_ptr<Segment> segment, std::size_t room_bytes, const Bootstrap& bootstrap)
    : segment_(std::move(segment)),
      self_(static_cast<std::size_t>(bootstrap.rank())),
      names_(bootstrap.names()),
      most_whole_bytes_(kMostWholeParts * room_bytes) {
  const auto size = static_cast<std::size_t>(bootstrap.size());
  const std::size_t half = (segment_->bytes() - kHugePage) / 2;
  const std::size_t others = size < 2 ? 0 : half / (size - 1) / kHugePage * kHugePage;
  begin_ = kHugePage + (self_ == 0 ? 0 : half + (self_ - 1) * others);
  end_ = begin_ + (self_ == 0 ? half : others);
  lines_end_ = begin_;
  rooms_begin_ = end_;
}

void Pool::introduce(std::vector<PoolMember> members) {
  members_ = std::move(members);
  for (PoolMember& member : members_) {
    // A process without a status file is trusted, since it sees this memory. If a process has
    // another number in this container, /proc cannot tell whether it lives, so its start time is
    // set to unknown.
    if (member.process.token != 0 && !meet(member.process)) member.process.start_time = 0;
  }
}

void Pool::divide(std::span<const std::uint32_t> cache_groups) {
  for (std::size_t i = 0; i < members_.size(); ++i) members_[i].cache_group = cache_groups[i];
}

std::optional<std::vector<std::size_t>> Pool::find(std::span<const int> world_ranks) const {
  const std::vector<int>& known = names_.world_ranks();
  std::vector<std::size_t> found;
  for (const int rank : world_ranks) {
    const auto at = std::ranges::find(known, rank);
    if (at == known.end()) return std::nullopt;
    found.push_back(static_cast<std::size_t>(at - known.begin()));
  }
  return found;
}

std::vector<const MemoryNode*> Pool::memory_nodes_of(std::span<const std::size_t> members) const {
  const MemoryNodes& nodes = MemoryNodes::of_this_host();
  std::vector<const MemoryNode*> found;
  if (!nodes.are_several()) return found;
  for (const std::size_t member : members) found.push_back(nodes.near(members_[member].cores));
  return found;
}

bool Pool::knows_this_process() const {
  const PoolMember& own = members_[self_];
  return own.process == this_process() && own.cores.allowed == allowed_cores();
}

// Rooms that are not small begin at a huge page.
std::optional<std::size_t> Pool::next_rooms(Size size) const {
  if (rooms_begin_ < size.rooms) return std::nullopt;
  const std::size_t last = rooms_begin_ - size.rooms;
  const std::size_t begin = are_small(size.rooms) ? last : last / kHugePage * kHugePage;
  if (begin < lines_end_ + size.lines) return std::nullopt;
  return begin;
}

PoolPart* Pool::take(std::size_t line_bytes, std::size_t room_bytes, std::size_t slot_bytes) {
  const Size size{line_bytes, room_bytes, slot_bytes};
  const std::lock_guard lock(mutex_);
  PoolPart* best = find_free(size, kLooks);
  if (best == nullptr && !next_rooms(size)) best = find_free(size, parts_.size());
  if (best == nullptr && !next_rooms(size) &&
      std::ranges::all_of(parts_, [this](PoolPart& part) { return is_free(part); })) {
    for (PoolPart& part : parts_) release(part);  // free parts of other sizes
    parts_.clear();
    lines_end_ = begin_;
    rooms_begin_ = end_;
  }
  if (const auto rooms = next_rooms(size); best == nullptr && rooms) {
    rooms_begin_ = *rooms;
    best = &parts_.emplace_back(PoolPart{.lines = lines_end_,
                                         .line_bytes = size.lines,
                                         .rooms = rooms_begin_,
                                         .room_bytes = size.rooms,
                                         .slot_bytes = size.slots});
    lines_end_ += size.lines;
  }
  if (best == nullptr) return nullptr;
  if (best->use == PoolPart::Use::kFree) idle_bytes_ -= best->held_bytes;
  best->use = PoolPart::Use::kHeld;
  return best;
}

// The free part of this size that has most memory, among the next `looks` parts.
PoolPart* Pool::find_free(Size size, std::size_t looks) {
  PoolPart* best = nullptr;
  for (std::size_t look = 0; look < std::min(looks, parts_.size()); ++look) {
    PoolPart& part = parts_[looked_++ % parts_.size()];
    if (!is_free(part) || size_of(part) != size) continue;
    if (best == nullptr || part.real > best->real) best = &part;
  }
  return best;
}

void Pool::populate(PoolPart& part, PoolPart::Real real, std::size_t begin, std::size_t bytes) {
  segment_->populate(begin, bytes);
  const std::lock_guard lock(mutex_);
  part.held_bytes += bytes;
  if (real == PoolPart::Real::kAll) whole_bytes_ += part.room_bytes;
  part.real = real;
}

bool Pool::may_make_whole() const {
  const std::lock_guard lock(mutex_);
  return whole_bytes_ < most_whole_bytes_;
}

void Pool::hand_over(PoolPart& part) {
  const std::lock_guard lock(mutex_);
  part.use = PoolPart::Use::kCounted;
}

void Pool::free(PoolPart& part) {
  const std::lock_guard lock(mutex_);
  part.use = PoolPart::Use::kFree;
  idle_bytes_ += part.held_bytes;
}

PoolPart* Pool::part_with(std::size_t lines) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(parts_.rbegin(), parts_.rend(),
                                  [lines](const PoolPart& part) { return part.lines == lines; });
  return found != parts_.rend() ? &*found : nullptr;
}

void Pool::trim() {
  const std::lock_guard lock(mutex_);
  for (std::size_t look = 0; look < std::min(kLooks, parts_.size()); ++look) {
    PoolPart& part = parts_[trimmed_++ % parts_.size()];
    if (is_free(part) && idle_bytes_ > kMostIdleBytes) release(part);
  }
}

// A rank that has counted itself out never touches the part again.
bool Pool::is_free(PoolPart& part) {
  if (part.use == PoolPart::Use::kCounted) {
    auto* users = reinterpret_cast<std::atomic<std::uint32_t>*>(at(part.lines));
    if (users->load(std::memory_order_acquire) == 0) {
      part.use = PoolPart::Use::kFree;
      idle_bytes_ += part.held_bytes;
    }
  }
  return part.use == PoolPart::Use::kFree;
}

// Returns the memory of a free part to the system.
void Pool::release(PoolPart& part) {
  if (part.real == PoolPart::Real::kNothing) return;
  segment_->release(part.lines, part.line_bytes);
  segment_->release(part.rooms, part.room_bytes);
  if (part.real == PoolPart::Real::kAll) whole_bytes_ -= part.room_bytes;
  idle_bytes_ -= part.held_bytes;
  part.held_bytes = 0;
  part.real = PoolPart::Real::kNothing;
}

}  // namespace gradred
