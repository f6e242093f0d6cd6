// A device for tests. Host threads must not access its memory, and its operations complete late.
//
// The pages of a file are mapped twice. At the device's addresses they have no access rights, so a
// host thread that accesses one ends the process by SIGSEGV. At other addresses the device's own
// threads read and write them. An operation runs some microseconds after its stream was asked
// whether it is ready, and not before: a caller that never asks never sees it complete. Operations
// of different streams run concurrently and in any order. Allocated memory is filled with kGarbage.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "memory/memory.h"

namespace gradred::testing {

class LateMemory final : public DeviceMemory {
 public:
  struct Behaviour {
    bool says_ready = false;  // each stream reports ready immediately, though its work is not done
    bool reduces = true;
    std::uint64_t seed = 1;  // for delays and orders
    std::uint64_t longest_delay_ns = 5'000;
  };

  explicit LateMemory(Behaviour behaviour)
      : behaviour_(behaviour), file_(memfd_create("late", MFD_CLOEXEC)), random_(behaviour.seed) {
    check(file_ >= 0 && ftruncate(file_, kBytes) == 0, "no memory file");
    addresses_ = map(PROT_NONE);
    pages_ = map(PROT_READ | PROT_WRITE);
    for (std::thread& one : device_) one = std::thread([this] { work(); });
  }
  LateMemory() : LateMemory(Behaviour()) {}
  ~LateMemory() override {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& one : device_) one.join();
    munmap(addresses_, kBytes);
    munmap(pages_, kBytes);
    close(file_);
  }
  LateMemory(const LateMemory&) = delete;
  LateMemory& operator=(const LateMemory&) = delete;

  std::string name() const override { return "late memory"; }
  bool reduces() const override { return behaviour_.reduces; }
  // No memory is reused until all of it has been released.
  std::byte* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const std::size_t begin = used_;
    used_ += (bytes + 63) / 64 * 64;
    check(used_ <= kBytes, "the device has no memory left");
    ++allocations_;
    std::memset(pages_ + begin, kGarbage, used_ - begin);
    return addresses_ + begin;
  }
  void release(std::byte* address) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!has(address) || --allocations_ > 0) return;
    used_ = 0;
  }
  std::size_t allocations() const {
    const std::lock_guard lock(mutex_);
    return allocations_;
  }
  std::uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }

  std::unique_ptr<DeviceStream> open_stream() override {
    return std::make_unique<LateStream>(*this);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{256} << 20;
  static constexpr int kGarbage = 0x5a;

  class LateStream;
  struct Task {
    LateStream* stream;
    std::function<void()> carry_out;
    std::uint64_t delay_ns;
  };

  class LateStream final : public DeviceStream {
   public:
    explicit LateStream(LateMemory& memory) : memory_(memory) {}
    ~LateStream() override {
      while (!is_done()) std::this_thread::yield();
    }
    void copy(void* target, const void* source, std::size_t bytes) override {
      if (bytes == 0) return;
      give([=, at = &memory_] { std::memcpy(at->own(target), at->own(source), bytes); });
    }
    void reduce(const Reduction& reduction, void* target, const void* a, const void* b,
                std::size_t count) override {
      give([=, at = &memory_] {
        reduction.on_host->pair(at->own(target), at->own(a), at->own(b), count);
      });
    }
    void scale(void* data, std::size_t count, DType dtype, double factor, bool divide) override {
      give([=, at = &memory_] { gradred::scale(at->own(data), count, dtype, factor, divide); });
    }
    void wait_for(const RecordedEvent&) override { check(false, "a program's stream"); }
    bool ready() override { return memory_.behaviour_.says_ready || is_done(); }
    std::uint64_t mark() override { return given_; }
    bool has_passed(std::uint64_t mark) override {
      return ready() || done_.load(std::memory_order_acquire) >= mark;
    }

   private:
    friend class LateMemory;
    bool is_done() {
      if (done_.load(std::memory_order_acquire) == given_) return true;
      if (std::exchange(given_when_asked_, given_) != given_) memory_.wake(*this);
      return false;
    }
    void give(std::function<void()> work) {
      ++given_;
      memory_.give({this, std::move(work), 0});
    }

    LateMemory& memory_;
    std::uint64_t given_ = 0;             // operations enqueued by the stream's owner
    std::uint64_t given_when_asked_ = 0;  // value of given_ at the last ready()
    std::atomic<std::uint64_t> done_{0};
    // Protected by the memory's mutex. If asked_ changed during a search, the search could find a
    // task before the one that precedes it.
    std::uint64_t asked_ = 0;
    bool busy_ = false;       // one of its tasks is running
    std::uint64_t seen_ = 0;  // last search that reached one of its tasks
  };

  std::byte* map(int protection) const {
    void* const at = mmap(nullptr, kBytes, protection, MAP_SHARED | MAP_NORESERVE, file_, 0);
    check(at != MAP_FAILED, "the device's memory cannot be mapped");
    return static_cast<std::byte*>(at);
  }
  bool has(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= addresses_ && at < addresses_ + kBytes;
  }
  // The address at which the device itself accesses a device or host address.
  template <class T>
  T* own(T* address) const {
    if (!has(address)) return address;
    return pages_ + (static_cast<const std::byte*>(address) - addresses_);
  }

  void give(Task task) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t longest = behaviour_.longest_delay_ns;
    task.delay_ns = longest == 0 ? 0 : random_() % longest;
    tasks_.push_back(std::move(task));
  }
  void wake(LateStream& stream) {
    const std::lock_guard lock(mutex_);
    stream.asked_ = stream.given_;
    changed_.notify_one();
  }

  // The first task of a stream that was asked whether it is ready. Tasks of one stream stay in
  // order.
  std::deque<Task>::iterator next() {
    ++searches_;
    std::vector<std::deque<Task>::iterator> found;
    for (auto task = tasks_.begin(); task != tasks_.end(); ++task) {
      LateStream& stream = *task->stream;
      if (std::exchange(stream.seen_, searches_) == searches_ || stream.busy_) continue;
      if (stream.asked_ > stream.done_.load(std::memory_order_relaxed)) found.push_back(task);
    }
    return found.empty() ? tasks_.end() : found[random_() % found.size()];
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      const auto found = next();
      if (found == tasks_.end()) {
        changed_.wait(lock);
        continue;
      }
      const Task task = std::move(*found);
      tasks_.erase(found);
      task.stream->busy_ = true;
      lock.unlock();
      for (const std::uint64_t begun = now_ns(); now_ns() - begun < task.delay_ns;) {
      }
      task.carry_out();
      operations_.fetch_add(1, std::memory_order_relaxed);
      lock.lock();
      task.stream->busy_ = false;
      task.stream->done_.fetch_add(
          1, std::memory_order_release);  // the stream may be destroyed from here on
    }
  }

  const Behaviour behaviour_;
  const int file_;
  std::byte* addresses_;
  std::byte* pages_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::size_t used_ = 0, allocations_ = 0;
  std::mt19937_64 random_;
  std::uint64_t searches_ = 0;
  bool ended_ = false;
  std::atomic<std::uint64_t> operations_{0};
  std::array<std::thread, 2> device_;  // last member, as the threads use all others
};

}  // namespace gradred::testing
