// What calls cost, by what was called and how large it was: counted for each communicator, merged
// when the process ends. One thread of a rank uses a communicator at a time, so that blocking calls
// are counted by plain stores; started ones end on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

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
  std::uint64_t compared = 0;  // samples beside the MPI, and what one call took in them, summed
  std::uint64_t own_ns = 0, mpi_ns = 0;
  std::uint64_t comparing_ns = 0;  // all that the samples took: no part of the above

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
  ProfileRow(const ProfileKey& key, bool on_node, std::size_t ranks);

  const ProfileKey key;

  // Whether the next call is to be timed, and whether the arrivals of all ranks be read after it.
  // Functions of the number of calls, hence the same on all ranks where they make the same calls.
  bool times() const { return always_times_ || calls() == next_sample_; }
  bool looks() const { return always_looks_ || calls() == next_sample_; }
  bool compares() const { return calls() >= next_compared_; }

  std::uint64_t calls() const { return get(calls_); }
  // For one thread at a time: a call that has returned.
  void count(std::uint64_t bytes) {
    bump(calls_, 1);
    bump(bytes_, bytes);
  }
  void took(std::uint64_t ns);  // before count(): without long waits
  void waited(std::uint64_t ns) { bump(waited_ns_, ns); }
  // After count(): the next call of which times() and looks() are true.
  void plan_sample();
  // A comparison: a call of each way, and all of it. The next one is planned by agreed values.
  void compared(std::uint64_t own_ns, std::uint64_t mpi_ns, std::uint64_t all_ns);
  void plan_comparison(std::uint64_t cost_ns, std::uint64_t own_ns);
  // For any thread: a started call that has ended, and what the program spent in it.
  void ended(std::uint64_t bytes, std::uint64_t ns);
  void exposed(std::uint64_t ns) { exposed_ns_.fetch_add(ns, std::memory_order_relaxed); }
  // Right after an operation on the node, before the next one.
  void look(const NodeGroup& node);

  ProfileCounts counts() const;
  const std::vector<Lateness>& lateness() const { return lateness_; }  // by rank; empty: no looks

 private:
  using Counter = std::atomic<std::uint64_t>;
  static std::uint64_t get(const Counter& counter) {
    return counter.load(std::memory_order_relaxed);
  }
  static void bump(Counter& counter, std::uint64_t by) {
    counter.store(get(counter) + by, std::memory_order_relaxed);
  }

  const bool always_times_, always_looks_;
  std::uint64_t next_sample_ = 0, next_compared_;
  Counter calls_{0}, bytes_{0}, early_calls_{0}, early_ns_{0}, timed_calls_{0}, timed_ns_{0};
  Counter waited_ns_{0}, exposed_ns_{0}, looks_{0}, skew_ns_{0}, longest_skew_ns_{0};
  Counter compared_{0}, own_ns_{0}, mpi_ns_{0}, comparing_ns_{0};
  std::vector<Lateness> lateness_;
};

// Of one communicator.
class Profile {
 public:
  Profile();
  ~Profile();  // what it counted is kept for the end
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Once the ranks have agreed to keep a profile. `world`: by rank, the rank in MPI_COMM_WORLD.
  void set_up(bool on_node, std::vector<int> world, std::uint64_t took_ns);
  ProfileRow& row(const Call& call, Mode mode);
  // The process's first call, if none was earlier, and its place in MPI_COMM_WORLD.
  void started_at(std::uint64_t ns, int rank, int size);

 private:
  friend struct ProfileTotals;
  struct Known {
    std::uint64_t what = ~std::uint64_t{0};
    ProfileRow* row = nullptr;
  };

  ProfileRow& find_row(const Call& call, Mode mode);

  std::vector<Known> known_;
  mutable std::mutex mutex_;  // of what follows, for who collects it
  bool on_node_ = false;
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
