// Calls in the order of a program's streams. Their copies wait for words in host memory
// (cuStreamWaitValue32), and write to such words when they are done.
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

#include "device/driver/cuda_context.h"
#include "device/driver/driver_gate.h"
#include "device/driver/owners.h"
#include "device/streams/cuda_streams.h"
#include "device/streams/pinned_memory.h"
#include "memory/stream_order.h"

namespace gradred::device {

// The streams and words of one context that calls use in turn.
class Orders {
 public:
  // `memory`: the device memory of the context, whose host memory `host` is.
  Orders(DeviceMemory& memory, const CudaContext& context, DriverGate& gate, PinnedMemory& host,
         const CudaStreams& streams)
      : memory_(memory), context_(context), gate_(gate), host_(host), streams_(streams) {}

  // See DeviceMemory::open_order().
  std::shared_ptr<StreamOrder> open(std::uint64_t stream, std::span<const std::size_t> host_bytes,
                                    std::string& why);
  // The context must be current. Returns nullptr if the device writes no words to host memory, or
  // if no slot is available now.
  class Mark;
  std::unique_ptr<Mark> open_mark();
  // For Workspace::give(). Returns nullptr in the same cases.
  class Given;
  std::unique_ptr<Given> give();
  bool has_enqueued_work() const { return given_.load(std::memory_order_relaxed) > 0; }

 private:
  friend class CudaOrder;
  // Counters modulo 2^32; each has one writer.
  struct alignas(64) Words {
    std::atomic<std::uint32_t> read{0}, written{0};  // pieces that the device has read, and written
    // Pieces that the host has released for the device to write.
    std::atomic<std::uint32_t> released{0};
  };
  struct Slot {
    Words* words;
    CudaEvent end;  // recorded behind the copies of the result
    std::uint32_t to_read = 0, to_write = 0, to_release = 0;
    bool is_free() const {
      return words->read.load(std::memory_order_acquire) == to_read &&
             words->written.load(std::memory_order_acquire) == to_write;
    }
  };
  // A stream pair: separate streams for inputs and results, because copies of results wait for
  // peers and must not delay those of inputs. Calls in the order of one program stream are executed
  // one after the other in any case.
  struct Lane {
    CudaStream input, result;
    std::uint64_t stream;      // the program's stream that uses this pair
    std::thread::id thread{};  // set if the handle means a separate stream in each thread
  };

  static constexpr std::size_t kMostLanes = 32;

  Lane* lane_of(std::uint64_t stream);
  std::unique_ptr<Slot> take_slot();  // nullptr: none available now
  std::unique_ptr<Slot> free_slot();
  std::unique_ptr<Slot> take_probed_slot();  // nullptr also if the device writes no words
  void give_back(std::unique_ptr<Slot> slot) noexcept;
  std::string why_none() const;
  void probe(const CudaStream& stream, Words& words);

  DeviceMemory& memory_;
  const CudaContext& context_;
  DriverGate& gate_;
  PinnedMemory& host_;
  const CudaStreams& streams_;
  std::atomic<int> given_{0};
  // Never held during a call of the driver, because the progress thread gives slots back.
  std::mutex slots_mutex_;
  // Slots that no call uses; some still have copies to do.
  std::vector<std::unique_ptr<Slot>> slots_;
  std::mutex mutex_;  // held to open an order; protects the members below
  std::vector<PinnedAllocation> pages_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool probed_ = false;
  std::optional<std::string> why_not_;
};

// A position in a stream of the program. The host sees that the stream has passed it without
// calling the driver.
class Orders::Mark {
 public:
  Mark(Orders& orders, std::unique_ptr<Slot> slot) : orders_(orders), slot_(std::move(slot)) {}
  ~Mark() { orders_.give_back(std::move(slot_)); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  // Behind all work that the stream has been given; the context must be current.
  void set(StreamHandle stream);
  bool has_passed() const { return slot_->is_free(); }

 private:
  Orders& orders_;
  std::unique_ptr<Slot> slot_;
};

// What a EnqueuedWork waits for and publishes. While one thread enqueues it, others may call the
// functions that follow.
class Orders::Given {
 public:
  Given(Orders& orders, std::unique_ptr<Slot> slot);
  ~Given();
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

  // Called once; the context must be current.
  void enqueue(const CudaStream& stream, const std::function<void()>& work);
  bool input_is_there() const;
  void begin() noexcept;
  bool is_done() const;
  void end() noexcept;

 private:
  Orders& orders_;
  std::unique_ptr<Slot> slot_;
  std::optional<DriverGate::Open> open_;  // until end()
  bool enqueued_ = false;
};

}  // namespace gradred::device
