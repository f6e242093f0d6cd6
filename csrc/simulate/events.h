// The events of a simulation in the order of their times.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace gradred {

struct Event {
  enum class Kind : std::uint8_t { kEnter, kStart, kEnd };

  std::uint32_t id = 0;  // of the execution, or of the message
  std::uint32_t version = 0;
  Kind kind = Kind::kEnter;
};

// Events of one time happen in the order in which they were added. Ranks that do the same have
// events at the same times, so events are queued in batches of one time: a new event joins one of
// the batches that were opened last, if its time is the same.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  double next_time() const { return heap_.top().time; }

  void add(double time, const Event& event) {
    for (const Open& open : open_) {
      if (open.batch != kNone && open.time == time) return batches_[open.batch].push_back(event);
    }
    const std::uint32_t batch = new_batch();
    batches_[batch].push_back(event);
    heap_.push({time, made_++, batch});
    open_[made_ % open_.size()] = {time, batch};
  }

  // Removes the first batch and returns it. The result is valid until the next call.
  const std::vector<Event>& take() {
    const std::uint32_t batch = heap_.top().batch;
    heap_.pop();
    for (Open& open : open_) {
      if (open.batch == batch) open.batch = kNone;
    }
    taken_.clear();
    std::swap(taken_, batches_[batch]);
    unused_.push_back(batch);
    return taken_;
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Queued {
    double time = 0;
    std::uint64_t number = 0;
    std::uint32_t batch = 0;

    bool operator>(const Queued& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  struct Open {
    double time = 0;
    std::uint32_t batch = kNone;
  };

  std::uint32_t new_batch() {
    if (unused_.empty()) {
      batches_.emplace_back();
      return static_cast<std::uint32_t>(batches_.size() - 1);
    }
    const std::uint32_t batch = unused_.back();
    unused_.pop_back();
    return batch;
  }

  std::priority_queue<Queued, std::vector<Queued>, std::greater<>> heap_;
  std::vector<std::vector<Event>> batches_;
  std::vector<std::uint32_t> unused_;
  std::vector<Event> taken_;
  std::array<Open, 8> open_{};
  std::uint64_t made_ = 0;
};

}  // namespace gradred
