// What calls cost, by what was called and how large it was: counted for each communicator, merged
// when the process ends. One thread of a rank uses a communicator at a time, so that blocking calls
// are counted by plain stores; started ones end on any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/stood.h"
#include "base/went.h"
#include "comm/call.h"
#include "node/group.h"

namespace gradred {

// The first two have ended when they return. Of a persistent operation, p() is the one and Start
// the other.
enum class Mode : std::uint8_t { kBlocking, kPersistentCall, kStarted, kPersistentStarted };

// Of one rank, as its peers saw it.
struct Lateness {
  std::uint64_t ns = 0;    // behind the first to come, summed
  std::uint64_t last = 0;  // how often it was the last one
};

// The sums of one row.
struct ProfileCounts {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
  std::uint64_t early_calls = 0, early_ns = 0;  // the first calls are all timed, as they are slower
  std::uint64_t timed_calls = 0, timed_ns = 0;  // later ones: all, or a sample, less long waits
  std::uint64_t waited_ns = 0;                  // long waits of all calls
  std::uint64_t exposed_ns = 0;                 // of started ones: in Start, Test and Wait
  std::uint64_t looks = 0;                      // how often all arrivals were known
  std::uint64_t skew_ns = 0, longest_skew_ns = 0;
  std::uint64_t compared = 0;  // samples beside the MPI, and the shortest call in them: it is least
  std::uint64_t own_ns = 0, mpi_ns = 0;  // disturbed by others; 0: no sample
  std::uint64_t comparing_ns = 0;        // all that the samples took: no part of the above
  Stood stood{};                         // where the time of started ones went
  std::array<std::array<std::uint64_t, 2>, kWays> went{};  // timed calls, by Went and is-staged

  void add(const ProfileCounts& other);
  double time_ns() const;  // of all calls: what was not timed is taken to be as the rest
};

struct ProfileKey {
  Kind kind = Kind::kAllreduce;
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;
  Mode mode = Mode::kBlocking;
  std::uint8_t size_class = 0;  // calls of up to 2^size_class bytes, and of more than half of that

  auto operator<=>(const ProfileKey&) const = default;
};

std::uint8_t size_class_of(std::size_t bytes);

class ProfileRow {
 public:
  // `samples`: short calls are not all timed.
  ProfileRow(const ProfileKey& key, bool samples, std::size_t ranks);

  const ProfileKey key;

  // Whether the next call is to be timed, and whether the arrivals of all ranks be read after it.
  // Functions of the number of calls, hence the same on all ranks where they make the same calls.
  bool times() const { return calls() >= next_timed_; }
  bool looks() const { return always_looks_ || calls() >= next_look_; }
  bool compares() const { return calls() >= next_compared_; }

  std::uint64_t calls() const { return get(calls_); }
  // For one thread at a time: a call that returns.
  void count(std::uint64_t bytes) {
    bump(calls_, 1);
    bump(bytes_, bytes);
  }
  void took(std::uint64_t ns);                                // before count(): without long waits
  std::atomic<std::uint64_t>& waits() { return waited_ns_; }  // for NodeGroup::charge_long_waits
  // After count(): the next call of which times() and looks() are true.
  void plan_sample();
  // A comparison: the shortest call of each way, and all of it. The next one is planned by agreed
  // values.
  void compared(std::uint64_t own_ns, std::uint64_t mpi_ns, std::uint64_t all_ns);
  void plan_comparison(std::uint64_t cost_ns, std::uint64_t own_ns);
  // When a started call begins: whether to look at arrivals after it.
  bool looks_at_started() { return always_looks_ || begun_++ % kStartedGap == 0; }
  // For any thread: a started call that has ended, and what the program spent in it.
  void ended(std::uint64_t bytes, std::uint64_t ns);
  void exposed(std::uint64_t ns) { exposed_ns_.fetch_add(ns, std::memory_order_relaxed); }
  void stood(const Stood& stood);
  void went(Went went, bool is_copied_to_host) {
    went_[static_cast<std::size_t>(went)][is_copied_to_host ? 1 : 0].fetch_add(
        1, std::memory_order_relaxed);
  }
  // Right after an operation on the node, before the next one.
  void look(const NodeGroup& node);

  ProfileCounts counts() const;
  const std::vector<Lateness>& lateness() const { return lateness_; }  // by rank; empty: no looks

 private:
  static constexpr std::uint64_t kStartedGap = 16;
  using Counter = std::atomic<std::uint64_t>;
  static std::uint64_t get(const Counter& counter) {
    return counter.load(std::memory_order_relaxed);
  }
  static void bump(Counter& counter, std::uint64_t by) {
    counter.store(get(counter) + by, std::memory_order_relaxed);
  }

  const bool always_times_, always_looks_;
  std::uint64_t next_timed_ = 0, next_look_ = 0, next_compared_, begun_ = 0;
  Counter calls_{0}, bytes_{0}, early_calls_{0}, early_ns_{0}, timed_calls_{0}, timed_ns_{0};
  Counter waited_ns_{0}, exposed_ns_{0}, looks_{0}, skew_ns_{0}, longest_skew_ns_{0};
  Counter compared_{0}, own_ns_{0}, mpi_ns_{0}, comparing_ns_{0};
  std::array<Counter, kStoodSums> stood_{};
  std::array<std::array<Counter, 2>, kWays> went_{};
  std::vector<Lateness> lateness_;
};

// Of one communicator.
class Profile {
 public:
  Profile();
  ~Profile();  // what it counted is kept for the end
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Once the ranks have agreed to keep a profile. `samples`: of its rows; `world`: by rank, the
  // rank in MPI_COMM_WORLD.
  void set_up(bool samples, std::vector<int> world, std::uint64_t took_ns);
  ProfileRow& row(const Call& call, Mode mode) { return *known(call, mode).row; }
  // Counts a call that is not to be timed; null, and nothing counted, where it is.
  ProfileRow* count_untimed(const Call& call, Mode mode) {
    Known& found = known_[place(what(call, mode))];
    if (found.what != what(call, mode) || found.row->times()) [[unlikely]] {
      return nullptr;
    }
    found.row->count(found.bytes);
    return found.row;
  }
  // The process's first call, if none was earlier, and its place in MPI_COMM_WORLD.
  void started_at(std::uint64_t ns, int rank, int size);

 private:
  friend struct ProfileTotals;
  // The row of one kind of call; for many kinds this is all that is looked at.
  struct Known {
    std::uint64_t what = ~std::uint64_t{0};
    ProfileRow* row = nullptr;
    std::uint64_t bytes = 0;
  };
  static constexpr std::size_t kKnown = 64;

  // The signature's first word says it all but for the mode: its six bits for the op are from 54
  // on, of which the ops need four, so that the mode has the upper two.
  static std::uint64_t what(const Call& call, Mode mode) {
    static_assert(static_cast<std::size_t>(kAnyUserOp) < 16);
    return make_signature(call.kind, call.op, call.dtype, call.count).what |
           static_cast<std::uint64_t>(mode) << 58;
  }
  static std::size_t place(std::uint64_t what) { return what * 0x9E3779B97F4A7C15ULL >> 58; }
  Known& known(const Call& call, Mode mode);
  ProfileRow& find_row(const Call& call, Mode mode);

  std::array<Known, kKnown> known_;
  mutable std::mutex mutex_;  // of what follows, for who collects it
  bool samples_ = false;
  std::vector<int> world_;
  std::map<ProfileKey, std::unique_ptr<ProfileRow>> rows_;
};

// What this process has counted on all its communicators.
struct ProfileTotals {
  struct Row {
    ProfileCounts counts;
    std::map<int, Lateness> lateness;  // by rank in MPI_COMM_WORLD
  };

  std::uint64_t since_ns = 0;  // the first call; 0: there was none
  int rank = 0, size = 0;      // in MPI_COMM_WORLD
  std::uint64_t set_ups = 0, set_up_ns = 0;
  std::map<ProfileKey, Row> rows;

  void add(const Profile& profile);
};
ProfileTotals profile_totals();

}  // namespace gradred
