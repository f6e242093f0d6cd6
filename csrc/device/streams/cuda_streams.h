// Streams of gradred's own, which copy and do not reduce.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "device/driver/cuda_context.h"
#include "device/kernels/loaded_kernels.h"
#include "device/streams/event_pool.h"
#include "device/streams/pinned_memory.h"
#include "memory/memory.h"

namespace gradred::device {

// The streams of one context, which calls use in turn.
class CudaStreams {
 public:
  CudaStreams(const CudaContext& context, PinnedMemory& host, LoadedKernels& kernels,
              EventPool& events)
      : context_(context), host_(host), kernels_(kernels), events_(events) {}

  std::unique_ptr<DeviceStream> open();
  // Whether calls are in flight that will give the device more work as they advance.
  bool has_work_to_come() const { return working_.load() > 0; }

 private:
  friend class Copies;
  struct Queue {
    CudaStream stream;
    std::vector<CudaEvent> marks{};  // events for marks in this stream's own work
  };

  std::unique_ptr<Queue> take_queue();
  void give_back(std::unique_ptr<Queue> queue, bool is_done) noexcept;

  const CudaContext& context_;
  PinnedMemory& host_;
  LoadedKernels& kernels_;
  EventPool& events_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Queue>> idle_;
  std::atomic<int> working_{0};  // streams that calls in flight use
};

}  // namespace gradred::device
