#include "simulated_streams.h"

#include <algorithm>
#include <thread>

namespace simulated {
namespace {

// Interval at which a moment of another process is checked.
constexpr std::chrono::microseconds kLook{50};

}  // namespace

StreamPointer Streams::open(bool blocking, bool urgent) {
  const std::lock_guard lock(mutex_);
  const std::size_t each = queues_.size() / 2;
  const std::size_t queue = opened_[urgent ? 1 : 0]++ % each + (urgent ? each : 0);
  auto stream = std::make_shared<Stream>(blocking, queues_[queue]);
  std::erase_if(streams_, [](const auto& one) { return one.expired(); });
  streams_.push_back(stream);
  std::thread([this, stream] { run(stream); }).detach();
  return stream;
}

void Streams::close(Stream& stream) {
  const std::lock_guard lock(mutex_);
  stream.closed_ = true;
  stream.changed_.notify_all();
}

Moment Streams::end_while_locked(const StreamPointer& stream) const {
  return {&stream->done_, stream->given_, stream};
}
Moment Streams::end_of(const StreamPointer& stream) const {
  const std::lock_guard lock(mutex_);
  return end_while_locked(stream);
}
std::vector<Moment> Streams::all_ends() const {
  const std::lock_guard lock(mutex_);
  std::vector<Moment> ends;
  for (const auto& one : streams_) {
    if (const StreamPointer stream = one.lock()) ends.push_back(end_while_locked(stream));
  }
  return ends;
}

bool Streams::is_full(const StreamPointer& stream) const {
  const std::lock_guard lock(mutex_);
  return stream->tasks_.size() >= most_;
}

void Streams::wait_for_room(const StreamPointer& stream) {
  std::unique_lock lock(mutex_);
  while (stream->tasks_.size() >= most_) changed_.wait_for(lock, kLook);
}

void Streams::give(const StreamPointer& stream, std::function<void()> work,
                   std::vector<Moment> after, std::function<bool()> until) {
  const std::lock_guard lock(mutex_);
  if (stream == standard_) {
    for (const auto& one : streams_) {
      const StreamPointer other = one.lock();
      if (other && other != stream && other->blocking) after.push_back(end_while_locked(other));
    }
  } else if (stream->blocking) {
    after.push_back(end_while_locked(standard_));
  }
  std::uniform_int_distribution<std::uint64_t> delays(least_delay_, most_delay_);
  HardwareQueue& queue = stream->queue_;
  stream->tasks_.push_back({std::move(work), std::move(after), std::move(until), ++queue.given,
                            std::chrono::nanoseconds(delays(random_))});
  queue.waiting.insert(queue.given);
  ++stream->given_;
  stream->changed_.notify_all();
}

void Streams::wait_for(const Moment& moment) {
  std::unique_lock lock(mutex_);
  while (!moment.is_past()) changed_.wait_for(lock, kLook);
}

void Streams::delay_by(std::uint64_t least, std::uint64_t most) {
  const std::lock_guard lock(mutex_);
  least_delay_ = least;
  most_delay_ = std::max(least, most);
}

void Streams::run(const StreamPointer& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    stream->changed_.wait(lock, [&] { return stream->closed_ || !stream->tasks_.empty(); });
    if (stream->tasks_.empty()) return;
    Task task = std::move(stream->tasks_.front());
    stream->tasks_.pop_front();
    std::set<std::uint64_t>& waiting = stream->queue_.waiting;
    while (*waiting.begin() != task.number || (task.until && !task.until()) ||
           !std::ranges::all_of(task.after, &Moment::is_past)) {
      changed_.wait_for(lock, kLook);
    }
    waiting.erase(task.number);
    if (!waiting.empty()) changed_.notify_all();
    lock.unlock();
    std::this_thread::sleep_for(task.delay);
    if (task.work) task.work();
    task = {};
    lock.lock();
    stream->done_.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
  }
}

}  // namespace simulated
