// A device for tests, whose memory no host thread may touch and whose operations complete late.
//
// The pages of a file are mapped twice: where the device's addresses are, without any access, and
// where the device's own threads read and write them. A host thread that touches a device address
// ends the process by SIGSEGV. An operation is carried out some microseconds after its stream has
// been asked whether it is ready, and not before: who never asks never sees it done. Operations of
// different streams are carried out at the same time and in any order. Memory that is allocated is
// full of kGarbage.
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
    bool says_ready = false;  // each stream says so at once, as if nobody had asked it
    bool reduces = true;
    std::uint64_t seed = 1;  // of delays and orders
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
  // Nothing is used again before all is released.
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
    void wait_for(const DeviceMoment&) override { check(false, "a program's stream"); }
    bool ready() override { return memory_.behaviour_.says_ready || is_done(); }
    std::uint64_t mark() override { return given_; }
    bool has_passed(std::uint64_t mark) override {
      return ready() || done_.load(std::memory_order_acquire) >= mark;
    }

   private:
    friend class LateMemory;
    bool is_done() {
      if (done_.load(std::memory_order_acquire) == given_) return true;
      if (std::exchange(told_, given_) != given_) memory_.wake(*this);
      return false;
    }
    void give(std::function<void()> work) {
      ++given_;
      memory_.give({this, std::move(work), 0});
    }

    LateMemory& memory_;
    std::uint64_t given_ = 0;  // by the thread whose stream it is
    std::uint64_t told_ = 0;   // that ready() was asked with so many given
    std::atomic<std::uint64_t> done_{0};
    // Under the memory's mutex: a search that saw asked_ change on its way would take a task before
    // the one that it follows.
    std::uint64_t asked_ = 0;
    bool busy_ = false;       // one of its tasks is being carried out
    std::uint64_t seen_ = 0;  // the last search that came to one of its tasks
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
  // Where the device itself finds a device or host address.
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

  // The first task of any stream that has been asked for it: those of one stream stay in order.
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
      task.stream->done_.fetch_add(1, std::memory_order_release);  // it may be gone from now on
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
  std::array<std::thread, 2> device_;  // last: they use all of the above
};

}  // namespace gradred::testing
