#include "node/pool.h"

#include <algorithm>

#include "base/errors.h"
#include "liveness/local_peers.h"

namespace gradred {
namespace {

// Parts of the largest size: this many for rank 0, and this many for all other leaders together,
// whose groups are usually smaller.
constexpr std::size_t kParts = 16;
constexpr std::size_t kMostIdleBytes = std::size_t{8} << 20;

std::size_t huge_pages(std::size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

}  // namespace

std::shared_ptr<Pool> Pool::create(Bootstrap& bootstrap, std::size_t part_bytes,
                                   std::string& reason) {
  const std::size_t region = kParts * huge_pages(part_bytes);
  auto segment = Segment::create(bootstrap, kHugePage + 2 * region, reason);
  if (segment == nullptr) return nullptr;
  return std::shared_ptr<Pool>(
      new Pool(std::move(segment), static_cast<std::size_t>(bootstrap.rank()),
               static_cast<std::size_t>(bootstrap.size()), bootstrap.names()));
}

Pool::Pool(std::shared_ptr<Segment> segment, std::size_t self, std::size_t size, RankNames names)
    : segment_(std::move(segment)), self_(self), names_(std::move(names)) {
  const std::size_t half = (segment_->bytes() - kHugePage) / 2;
  const std::size_t others = size < 2 ? 0 : half / (size - 1) / kHugePage * kHugePage;
  begin_ = kHugePage + (self_ == 0 ? 0 : half + (self_ - 1) * others);
  end_ = begin_ + (self_ == 0 ? half : others);
  next_ = begin_;
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

bool Pool::knows_this_process() const {
  const PoolMember& own = members_[self_];
  return own.process == this_process() && own.cores.allowed == allowed_cores();
}

PoolPart* Pool::take(std::size_t bytes) {
  bytes = huge_pages(bytes);
  const std::lock_guard lock(mutex_);
  PoolPart* best = nullptr;
  bool all_free = true;
  for (PoolPart& part : parts_) {
    const bool free = is_free(part);
    all_free &= free;
    if (free && part.bytes == bytes && (best == nullptr || part.real > best->real)) best = &part;
  }
  if (best == nullptr && end_ - next_ < bytes && all_free) {  // free parts of other sizes
    for (const PoolPart& part : parts_) segment_->release(part.begin, part.bytes);
    parts_.clear();
    next_ = begin_;
  }
  if (best == nullptr && end_ - next_ >= bytes) {
    best = &parts_.emplace_back(PoolPart{.begin = next_, .bytes = bytes});
    next_ += bytes;
  }
  if (best != nullptr) best->use = PoolPart::Use::kHeld;
  return best;
}

void Pool::hand_over(PoolPart& part) {
  const std::lock_guard lock(mutex_);
  part.use = PoolPart::Use::kCounted;
}

void Pool::free(PoolPart& part) {
  const std::lock_guard lock(mutex_);
  part.use = PoolPart::Use::kFree;
}

PoolPart* Pool::part_at(std::size_t begin) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(parts_, begin, &PoolPart::begin);
  return found != parts_.end() ? &*found : nullptr;
}

void Pool::trim() {
  const std::lock_guard lock(mutex_);
  std::size_t idle = 0;
  for (PoolPart& part : parts_) {
    if (!is_free(part) || part.real != PoolPart::Real::kAll) continue;
    idle += part.bytes;
    if (idle <= kMostIdleBytes) continue;
    segment_->release(part.begin, part.bytes);
    part.real = PoolPart::Real::kNothing;
  }
}

// A rank that has counted itself out never touches the part again.
bool Pool::is_free(PoolPart& part) const {
  if (part.use == PoolPart::Use::kCounted) {
    auto* users = reinterpret_cast<std::atomic<std::uint32_t>*>(at(part.begin));
    if (users->load(std::memory_order_acquire) == 0) part.use = PoolPart::Use::kFree;
  }
  return part.use == PoolPart::Use::kFree;
}

}  // namespace gradred
