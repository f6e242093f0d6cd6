// The simulated driver's streams. Each is a thread that runs its tasks in order, each after a
// random delay. Streams share hardware queues: a task begins only after all tasks that were
// enqueued earlier in the same hardware queue, also in other streams, have begun.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

namespace simulated {

// A count that a task waits for. `keep` owns its memory.
struct Moment {
  std::atomic<std::uint64_t>* count = nullptr;
  std::uint64_t reached = 0;
  std::shared_ptr<void> keep;
  bool is_past() const {
    return count == nullptr || count->load(std::memory_order_acquire) >= reached;
  }
};

struct Task {
  std::function<void()> work;
  std::vector<Moment> after;
  std::function<bool()> until;  // the task begins when this is true; empty: at once
  std::uint64_t number;         // in its hardware queue
  std::chrono::nanoseconds delay{0};
};

struct HardwareQueue {
  std::uint64_t given = 0;
  std::set<std::uint64_t> waiting;  // tasks that have not begun
};

class Streams;

class Stream {
 public:
  Stream(bool blocking, HardwareQueue& queue) : blocking(blocking), queue_(queue) {}
  const bool blocking;  // synchronises with the default stream

 private:
  friend class Streams;
  HardwareQueue& queue_;
  std::condition_variable changed_;  // a task was added, or the stream was closed
  std::deque<Task> tasks_;
  std::uint64_t given_ = 0;
  std::atomic<std::uint64_t> done_{0};
  bool closed_ = false;
};

using StreamPointer = std::shared_ptr<Stream>;

class Streams {
 public:
  // `queues`: hardware queues per priority. `most`: tasks that may wait in each stream.
  Streams(std::uint64_t seed, std::size_t queues, std::size_t most)
      : most_(most), random_(seed), queues_(2 * queues), standard_(open(true, false)) {}

  StreamPointer open(bool blocking, bool urgent);
  void close(Stream& stream);  // runs the tasks enqueued before
  // The legacy default stream.
  const StreamPointer& standard() const { return standard_; }

  // is_full(): whether `most` tasks wait in the stream. wait_for_room() blocks until it has room.
  bool is_full(const StreamPointer& stream) const;
  void wait_for_room(const StreamPointer& stream);
  void give(const StreamPointer& stream, std::function<void()> work, std::vector<Moment> after = {},
            std::function<bool()> until = {});
  Moment end_of(const StreamPointer& stream) const;
  std::vector<Moment> all_ends() const;
  void wait_for(const Moment& moment);

  // Sets the shortest and the longest delay of a task in nanoseconds.
  void delay_by(std::uint64_t least, std::uint64_t most);

 private:
  void run(const StreamPointer& stream);
  Moment end_while_locked(const StreamPointer& stream) const;

  const std::size_t most_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::uint64_t least_delay_ = 0, most_delay_ = 100'000;
  std::vector<std::weak_ptr<Stream>> streams_;
  std::vector<HardwareQueue> queues_;  // those of urgent streams last
  std::array<std::size_t, 2> opened_{};
  StreamPointer standard_;
};

}  // namespace simulated
