// Calls in the order of a program's streams: what their copies wait for are words in host memory
// (cuStreamWaitValue32), and what they tell goes there, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "device/owners.h"
#include "memory/order.h"

namespace gradred::device {

class CudaMemory;

// Of one context: streams and words that calls take turns with.
class Orders {
 public:
  explicit Orders(CudaMemory& memory) : memory_(memory) {}

  // As DeviceMemory::open_order().
  std::shared_ptr<StreamOrder> open(std::uint64_t stream, std::span<const std::size_t> host_bytes,
                                    std::string& why);
  // In the current context. Null: the device writes no words to host memory, or not now.
  class Mark;
  std::unique_ptr<Mark> open_mark();
  // One that is open: the device may be waiting for peers.
  class Open {
   public:
    explicit Open(Orders& orders);
    ~Open() { --orders_.open_; }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    Orders& orders_;
  };
  // To pin memory, to allocate or free a device's, to open a peer's, or to load a module may take
  // the driver until the device has nothing to do. While one is open that may be never: what peers
  // have to do first may have to wait for this thread. So whatever does any of these, and is none
  // of the program's own requests, is done here: unless one is open; none is opened meanwhile.
  // Whether it has been done.
  bool while_none_is_open(const std::function<void()>& have_the_driver_wait);

 private:
  friend class CudaOrder;
  // Counts that go round; each has one writer.
  struct alignas(64) Words {
    std::atomic<std::uint32_t> read{0}, written{0};  // pieces, by the device
    std::atomic<std::uint32_t> released{0};          // pieces, by the host
  };
  struct Slot {
    Words* words;
    CudaEvent end;  // of the copies of the result
    std::uint32_t to_read = 0, to_write = 0, to_release = 0;
    bool is_free() const {
      return words->read.load(std::memory_order_acquire) == to_read &&
             words->written.load(std::memory_order_acquire) == to_write;
    }
  };
  // Copies of results wait for peers, and must not hold up those of inputs. Calls in the order of
  // one stream come one after the other in any case.
  struct Lane {
    CudaStream input, result;
    std::uint64_t stream;      // of the program's, that has it
    std::thread::id thread{};  // where each thread has a stream of its own by that name
  };

  static constexpr std::size_t kMostLanes = 32;

  Lane* lane_of(std::uint64_t stream);
  std::unique_ptr<Slot> take_slot();  // null: not now
  std::unique_ptr<Slot> free_slot();
  void give_back(std::unique_ptr<Slot> slot) noexcept;
  std::string why_none() const;
  void probe(const CudaStream& stream, Words& words);

  CudaMemory& memory_;
  std::mutex opening_;  // held by who has the driver wait
  std::atomic<int> open_{0};
  // Never held in a call of the driver: the engine's thread gives slots back.
  std::mutex slots_mutex_;
  std::vector<std::unique_ptr<Slot>> slots_;  // of no call; some still have copies to do
  std::mutex mutex_;                          // of who opens one, and all that follows
  std::vector<PinnedAllocation> pages_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool probed_ = false;
  std::optional<std::string> why_not_;
};

// A place in a stream of the program's, which the host sees passed without a call of the driver.
class Orders::Mark {
 public:
  Mark(Orders& orders, std::unique_ptr<Slot> slot) : orders_(orders), slot_(std::move(slot)) {}
  ~Mark() { orders_.give_back(std::move(slot_)); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  void set(StreamHandle stream);  // behind all that it has been given; in the memory's context
  bool has_passed() const { return slot_->is_free(); }

 private:
  Orders& orders_;
  std::unique_ptr<Slot> slot_;
};

}  // namespace gradred::device
