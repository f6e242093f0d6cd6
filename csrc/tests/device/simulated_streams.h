// The simulated driver's streams: each is a thread that carries out its tasks in order, each after
// a random delay.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

namespace simulated {

// A count that a task waits for; `keep` is what it lies in.
struct Moment {
  const std::atomic<std::uint64_t>* count = nullptr;
  std::uint64_t reached = 0;
  std::shared_ptr<void> keep;
  bool is_past() const {
    return count == nullptr || count->load(std::memory_order_acquire) >= reached;
  }
};

struct Task {
  std::function<void()> work;
  std::vector<Moment> after;
  std::chrono::nanoseconds delay{0};
};

class Streams;

class Stream {
 public:
  explicit Stream(bool blocking) : blocking(blocking) {}
  const bool blocking;  // the default stream and this one wait for each other

 private:
  friend class Streams;
  std::deque<Task> tasks_;
  std::uint64_t given_ = 0;
  std::atomic<std::uint64_t> done_{0};
  bool closed_ = false;
};

using StreamPointer = std::shared_ptr<Stream>;

class Streams {
 public:
  explicit Streams(std::uint64_t seed) : random_(seed), standard_(open(true)) {}

  StreamPointer open(bool blocking);
  void close(Stream& stream);  // what was given to it will be done
  // The legacy default stream.
  const StreamPointer& standard() const { return standard_; }

  void give(const StreamPointer& stream, std::function<void()> work,
            std::vector<Moment> after = {});
  Moment end_of(const StreamPointer& stream) const;
  std::vector<Moment> all_ends() const;
  void wait_for(const Moment& moment);

  // How late a task may begin, in nanoseconds, and how early.
  void delay_by(std::uint64_t least, std::uint64_t most);

 private:
  void run(const StreamPointer& stream);
  Moment end_while_locked(const StreamPointer& stream) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::uint64_t least_delay_ = 0, most_delay_ = 100'000;
  std::vector<std::weak_ptr<Stream>> streams_;
  StreamPointer standard_;
};

}  // namespace simulated
