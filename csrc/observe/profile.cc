#include "observe/profile.h"

#include <algorithm>
#include <bit>

#include "base/clock.h"

namespace gradred {
namespace {

// For a call of more bytes than this, which takes microseconds, two readings of the clock are less
// than 1 % of its time.
constexpr std::size_t kAlwaysTimedBytes = std::size_t{16} << 10;
constexpr std::uint64_t kEarly = 16;
// Shorter calls are timed once in 256 to 760 calls, so that no pattern of the program matches the
// samples. A look at all arrivals costs a microsecond, so for the shortest calls the gap is four
// times as long.
constexpr std::uint64_t kLeastGap = 256, kGapStep = 8, kMoreOfShortest = 4;
constexpr std::size_t kShortestBytes = 1024;

// The bytes that pass each rank's link, for one byte that a row counts (nccl-tests,
// PERFORMANCE.md).
double bus_share(Kind kind, std::size_t ranks) {
  if (ranks < 2) return 0;
  const auto others = static_cast<double>(ranks - 1);
  if (has_blocks(kind)) return others;  // rows count one block
  return kind == Kind::kAllreduce ? 2 * others / static_cast<double>(ranks) : 1;
}

std::uint64_t scatter(std::uint64_t value) { return value * 0x9E3779B97F4A7C15ULL >> 58; }

// The sums of all profiles that have ended, and the profiles that live. Never freed: communicators
// may outlive static objects.
struct Profiles {
  std::mutex mutex;
  ProfileTotals ended;
  std::vector<const Profile*> alive;
};

Profiles& profiles() {
  static auto* all = new Profiles;
  return *all;
}

}  // namespace

void ProfileCounts::add(const ProfileCounts& other) {
  calls += other.calls;
  bytes += other.bytes;
  early_calls += other.early_calls;
  early_ns += other.early_ns;
  timed_calls += other.timed_calls;
  timed_ns += other.timed_ns;
  waited_ns += other.waited_ns;
  exposed_ns += other.exposed_ns;
  looks += other.looks;
  skew_ns += other.skew_ns;
  for (std::size_t i = 0; i < kWaitCauses; ++i) waits[i] += other.waits[i];
  for (std::size_t way = 0; way < kUsedTransports; ++way) {
    for (std::size_t staged = 0; staged < 2; ++staged)
      transports[way][staged] += other.transports[way][staged];
  }
}

double ProfileCounts::time_ns() const {
  const bool only_early = timed_calls == 0;
  const std::uint64_t sample = only_early ? early_calls : timed_calls;
  const double each = sample == 0 ? 0
                                  : static_cast<double>(only_early ? early_ns : timed_ns) /
                                        static_cast<double>(sample);
  const auto untimed = static_cast<double>(calls - early_calls - timed_calls);
  return static_cast<double>(early_ns + timed_ns + waited_ns) + each * untimed;
}

std::uint8_t size_class_of(std::size_t bytes) {
  return static_cast<std::uint8_t>(bytes <= 1 ? 0 : std::bit_width(bytes - 1));
}

// ---- one row --------------------------------------------------------------------------------

ProfileRow::ProfileRow(const ProfileKey& its_key, bool samples, std::size_t ranks)
    : key(its_key),
      always_times_(!samples || std::size_t{1} << its_key.size_class > kAlwaysTimedBytes),
      always_looks_(std::size_t{1} << its_key.size_class > kAlwaysTimedBytes * (ranks - 1)),
      lateness_(ranks) {}

void ProfileRow::took(std::uint64_t ns) {
  const bool early = calls() < kEarly;
  bump(early ? early_calls_ : timed_calls_, 1);
  bump(early ? early_ns_ : timed_ns_, ns);
}

void ProfileRow::plan_sample() {
  const std::uint64_t made = calls();
  if (made <= next_look_) return;
  const std::uint64_t gap = kLeastGap + kGapStep * scatter(made);
  const bool shortest = std::size_t{1} << key.size_class <= kShortestBytes;
  next_look_ = made < kEarly ? made : made + gap * (shortest ? kMoreOfShortest : 1);
  if (!always_times_) next_timed_ = next_look_;
}

void ProfileRow::ended(std::uint64_t bytes, std::uint64_t ns) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  timed_calls_.fetch_add(1, std::memory_order_relaxed);
  timed_ns_.fetch_add(ns, std::memory_order_relaxed);
}

void ProfileRow::add_waits(const WaitTimes& waits) {
  for (std::size_t i = 0; i < kWaitCauses; ++i) {
    waits_[i].fetch_add(waits[i], std::memory_order_relaxed);
  }
}

void ProfileRow::look(const NodeGroup& node) {
  if (lateness_.size() < static_cast<std::size_t>(node.size())) return;  // made before the set-up
  std::uint64_t first = ~std::uint64_t{0}, last = 0;
  int last_rank = 0;
  for (int rank = 0; rank < node.size(); ++rank) {
    const std::uint64_t came = node.arrival_ns(rank);
    if (came == 0) return;  // that rank has no arrival time
    first = std::min(first, came);
    if (came > last) last_rank = rank;
    last = std::max(last, came);
  }
  for (int rank = 0; rank < node.size(); ++rank) {
    bump(lateness_[static_cast<std::size_t>(rank)].ns, node.arrival_ns(rank) - first);
  }
  bump(lateness_[static_cast<std::size_t>(last_rank)].last, 1);
  bump(looks_, 1);
  bump(skew_ns_, last - first);
}

std::vector<Lateness> ProfileRow::lateness() const {
  if (get(looks_) == 0) return {};
  std::vector<Lateness> made;
  for (const LatenessCounters& one : lateness_) made.push_back({get(one.ns), get(one.last)});
  return made;
}

ProfileCounts ProfileRow::counts() const {
  ProfileCounts made{.calls = get(calls_),
                     .bytes = get(bytes_),
                     .early_calls = get(early_calls_),
                     .early_ns = get(early_ns_),
                     .timed_calls = get(timed_calls_),
                     .timed_ns = get(timed_ns_),
                     .waited_ns = get(waited_ns_),
                     .exposed_ns = get(exposed_ns_),
                     .looks = get(looks_),
                     .skew_ns = get(skew_ns_)};
  for (std::size_t i = 0; i < kWaitCauses; ++i) made.waits[i] = get(waits_[i]);
  for (std::size_t way = 0; way < kUsedTransports; ++way) {
    for (std::size_t staged = 0; staged < 2; ++staged) {
      made.transports[way][staged] = get(transports_[way][staged]);
    }
  }
  return made;
}

// ---- one communicator -----------------------------------------------------------------------

Profile::Profile() {
  const std::lock_guard lock(profiles().mutex);
  profiles().alive.push_back(this);
}

Profile::~Profile() {
  const std::lock_guard lock(profiles().mutex);
  std::erase(profiles().alive, this);
  profiles().ended.add(*this);
}

void Profile::set_up(bool samples, std::vector<int> world, std::uint64_t took_ns) {
  {
    const std::lock_guard lock(mutex_);
    samples_ = samples;
    world_ = std::move(world);
  }
  const std::lock_guard lock(profiles().mutex);
  ++profiles().ended.set_ups;
  profiles().ended.set_up_ns += took_ns;
}

void Profile::started_at(std::uint64_t ns, int rank, int size) {
  const std::lock_guard lock(profiles().mutex);
  ProfileTotals& totals = profiles().ended;
  totals.since_ns = totals.since_ns == 0 ? ns : std::min(totals.since_ns, ns);
  if (size < totals.size) return;  // without an MPI each communicator has its own ranks
  totals.rank = rank;
  totals.size = size;
}

Profile::Known& Profile::known(const Call& call, Mode mode) {
  Known& found = known_[place(what(call, mode))];
  if (found.what != what(call, mode)) {
    found = {what(call, mode), &find_row(call, mode), call.count * size_of(call.dtype)};
  }
  return found;
}

ProfileRow& Profile::find_row(const Call& call, Mode mode) {
  const bool reduces = gradred::reduces(call.kind);
  const ProfileKey key{call.kind, reduces ? as_compared(call.op) : Op::kSum, call.dtype, mode,
                       size_class_of(call.count * size_of(call.dtype))};
  const std::lock_guard lock(mutex_);
  std::unique_ptr<ProfileRow>& row = rows_[key];
  if (row == nullptr) {
    row = std::make_unique<ProfileRow>(key, samples_, std::max<std::size_t>(world_.size(), 2));
  }
  return *row;
}

// ---- of the process -----------------------------------------------------------------------------

void ProfileTotals::add(const Profile& profile) {
  const std::lock_guard lock(profile.mutex_);
  for (const auto& [key, row] : profile.rows_) {
    Row& total = rows[key];
    const ProfileCounts counts = row->counts();
    total.counts.add(counts);
    total.bus_bytes +=
        static_cast<double>(counts.bytes) * bus_share(key.kind, profile.world_.size());
    const std::vector<Lateness> lateness = row->lateness();
    for (std::size_t rank = 0; rank < std::min(lateness.size(), profile.world_.size()); ++rank) {
      Lateness& late = total.lateness[profile.world_[rank]];
      late.ns += lateness[rank].ns;
      late.last += lateness[rank].last;
    }
  }
}

ProfileTotals profile_totals() {
  const std::lock_guard lock(profiles().mutex);
  ProfileTotals totals = profiles().ended;
  for (const Profile* profile : profiles().alive) totals.add(*profile);
  return totals;
}

}  // namespace gradred
