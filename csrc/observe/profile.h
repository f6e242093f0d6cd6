// What calls cost, by what was called and how large it was. Calls are counted for each
// communicator, and merged when the process ends. One thread of a rank uses a communicator at a
// time, so blocking calls are counted with plain stores; started calls may end on any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/used_transport.h"
#include "base/wait_times.h"
#include "calls/call.h"
#include "node/group/group.h"

namespace gradred {

// Calls of the first two modes have ended when they return. For a persistent operation, p() has the
// second mode and Start the last one.
enum class Mode : std::uint8_t { kBlocking, kPersistentCall, kStarted, kPersistentStarted };

// How late one rank was, as its peers saw it.
struct Lateness {
  std::uint64_t ns = 0;    // behind the first rank, summed
  std::uint64_t last = 0;  // how often it was the last rank
};

// The sums of one row.
struct ProfileCounts {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
  // The first calls are all timed, since they are slower.
  std::uint64_t early_calls = 0, early_ns = 0;
  std::uint64_t timed_calls = 0, timed_ns = 0;  // later calls: all, or a sample, without long waits
  std::uint64_t waited_ns = 0;                  // long waits of all calls
  std::uint64_t exposed_ns = 0;                 // of started calls: in Start, Test and Wait
  std::uint64_t looks = 0;                      // how often the arrivals of all ranks were known
  std::uint64_t skew_ns = 0;
  WaitTimes waits{};  // where the time of started calls went
  // Timed calls, by UsedTransport, and by whether the data were copied to the host.
  std::array<std::array<std::uint64_t, 2>, kUsedTransports> transports{};

  void add(const ProfileCounts& other);
  double time_ns() const;  // of all calls: untimed ones are assumed to be like the rest
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
  // `samples`: not all short calls are timed.
  ProfileRow(const ProfileKey& key, bool samples, std::size_t ranks);

  const ProfileKey key;

  // Whether the next call is timed, and whether the arrivals of all ranks are read after it. Both
  // depend on the number of calls, so they are the same on all ranks if the ranks make the same
  // calls.
  bool times() const { return calls() >= next_timed_; }
  bool looks() const { return always_looks_ || calls() >= next_look_; }

  std::uint64_t calls() const { return get(calls_); }
  // Counts a call that returns. One thread at a time.
  void count(std::uint64_t bytes) {
    bump(calls_, 1);
    bump(bytes_, bytes);
  }
  void took(std::uint64_t ns);  // before count(); `ns` is without long waits
  std::atomic<std::uint64_t>& waits() { return waited_ns_; }  // for NodeGroup::charge_long_waits
  // After count(): plans the next call for which times() and looks() are true.
  void plan_sample();
  // At the begin of a started call: whether to look at arrivals after it.
  bool looks_at_started() { return always_looks_ || begun_++ % kStartedGap == 0; }
  // Any thread may call these: a started call has ended, and the time that the program spent in it.
  void ended(std::uint64_t bytes, std::uint64_t ns);
  void exposed(std::uint64_t ns) { exposed_ns_.fetch_add(ns, std::memory_order_relaxed); }
  void add_waits(const WaitTimes& waits);
  void add_transport(UsedTransport transport, bool is_copied_to_host) {
    transports_[static_cast<std::size_t>(transport)][is_copied_to_host ? 1 : 0].fetch_add(
        1, std::memory_order_relaxed);
  }
  // Right after an operation of the node group, before the next one.
  void look(const NodeGroup& node);

  // Other threads may read these.
  ProfileCounts counts() const;
  std::vector<Lateness> lateness() const;  // by rank; empty: no looks

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
  std::uint64_t next_timed_ = 0, next_look_ = 0, begun_ = 0;
  Counter calls_{0}, bytes_{0}, early_calls_{0}, early_ns_{0}, timed_calls_{0}, timed_ns_{0};
  Counter waited_ns_{0}, exposed_ns_{0}, looks_{0}, skew_ns_{0};
  std::array<Counter, kWaitCauses> waits_{};
  std::array<std::array<Counter, 2>, kUsedTransports> transports_{};
  struct LatenessCounters {
    Counter ns{0}, last{0};
  };
  std::vector<LatenessCounters> lateness_;
};

// The profile of one communicator.
class Profile {
 public:
  Profile();
  ~Profile();  // its counts are kept until the process ends
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Called once the ranks have agreed to keep a profile. `samples`: for its rows. `world`: by rank,
  // the rank in MPI_COMM_WORLD.
  void set_up(bool samples, std::vector<int> world, std::uint64_t took_ns);
  ProfileRow& row(const Call& call, Mode mode) { return *known(call, mode).row; }
  // Counts a call that is not to be timed. If it is to be timed, counts nothing and returns
  // nullptr.
  ProfileRow* count_untimed(const Call& call, Mode mode) {
    Known& found = known_[place(what(call, mode))];
    if (found.what != what(call, mode) || found.row->times()) [[unlikely]] {
      return nullptr;
    }
    found.row->count(found.bytes);
    return found.row;
  }
  // The time of the process's first call, if none was earlier, and its rank and size in
  // MPI_COMM_WORLD.
  void started_at(std::uint64_t ns, int rank, int size);

 private:
  friend struct ProfileTotals;
  // The row of one kind of call. Most calls look at nothing else.
  struct Known {
    std::uint64_t what = ~std::uint64_t{0};
    ProfileRow* row = nullptr;
    std::uint64_t bytes = 0;
  };
  static constexpr std::size_t kKnown = 64;

  // The signature's first word identifies the call except for the mode. Its six bits for the op
  // begin at bit 54, and the ops need four of them, so the mode gets the upper two.
  static std::uint64_t what(const Call& call, Mode mode) {
    static_assert(static_cast<std::size_t>(kAnyUserOp) < 16);
    return make_signature(call.kind, call.op, call.dtype, call.count).what |
           static_cast<std::uint64_t>(mode) << 58;
  }
  static std::size_t place(std::uint64_t what) { return what * 0x9E3779B97F4A7C15ULL >> 58; }
  Known& known(const Call& call, Mode mode);
  ProfileRow& find_row(const Call& call, Mode mode);

  std::array<Known, kKnown> known_;
  mutable std::mutex mutex_;  // guards what follows, for the thread that collects it
  bool samples_ = false;
  std::vector<int> world_;
  std::map<ProfileKey, std::unique_ptr<ProfileRow>> rows_;
};

// What this process has counted on all its communicators.
struct ProfileTotals {
  struct Row {
    ProfileCounts counts;
    std::map<int, Lateness> lateness;  // by rank in MPI_COMM_WORLD
    double bus_bytes = 0;              // bytes that pass each rank's link
  };

  std::uint64_t since_ns = 0;  // time of the first call; 0: there was none
  int rank = 0, size = 0;      // in MPI_COMM_WORLD
  std::uint64_t set_ups = 0, set_up_ns = 0;
  std::map<ProfileKey, Row> rows;

  void add(const Profile& profile);
};
ProfileTotals profile_totals();

}  // namespace gradred
