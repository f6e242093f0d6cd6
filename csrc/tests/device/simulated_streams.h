// The simulated driver's streams: each is a thread that carries out its tasks in order, each after
// a random delay. Streams share queues of the hardware: there no task begins before those have
// begun that were given earlier, also to other streams.
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

// A count that a task waits for; `keep` is what it lies in.
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
  std::function<bool()> until;  // it begins when this is true; empty: at once
  std::uint64_t number;         // in its queue
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
  const bool blocking;  // the default stream and this one wait for each other

 private:
  friend class Streams;
  HardwareQueue& queue_;
  std::condition_variable changed_;  // there are tasks, or it is closed
  std::deque<Task> tasks_;
  std::uint64_t given_ = 0;
  std::atomic<std::uint64_t> done_{0};
  bool closed_ = false;
};

using StreamPointer = std::shared_ptr<Stream>;

class Streams {
 public:
  // As many queues for streams of each urgency; so many tasks at most wait in each stream.
  Streams(std::uint64_t seed, std::size_t queues, std::size_t most)
      : most_(most), random_(seed), queues_(2 * queues), standard_(open(true, false)) {}

  StreamPointer open(bool blocking, bool urgent);
  void close(Stream& stream);  // what was given to it will be done
  // The legacy default stream.
  const StreamPointer& standard() const { return standard_; }

  // Whether it holds no more tasks that have not begun; and until it does.
  bool is_full(const StreamPointer& stream) const;
  void wait_for_room(const StreamPointer& stream);
  void give(const StreamPointer& stream, std::function<void()> work, std::vector<Moment> after = {},
            std::function<bool()> until = {});
  Moment end_of(const StreamPointer& stream) const;
  std::vector<Moment> all_ends() const;
  void wait_for(const Moment& moment);

  // How late a task may begin, in nanoseconds, and how early.
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
  std::vector<HardwareQueue> queues_;  // the urgent ones last
  std::array<std::size_t, 2> opened_{};
  StreamPointer standard_;
};

}  // namespace simulated
