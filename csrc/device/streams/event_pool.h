// Positions in streams, for which other streams can wait.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/driver/cuda_context.h"
#include "memory/memory.h"

namespace gradred::device {

// The events of one context; they are reused.
class EventPool {
 public:
  explicit EventPool(const CudaContext& context) : context_(context) {}

  // See DeviceMemory::event_of() and precede(). Both throw UsageError if the stream is being
  // captured.
  std::shared_ptr<const RecordedEvent> of(std::uint64_t stream);
  void precede(const RecordedEvent& event, std::uint64_t stream) const;

 private:
  friend class PooledEvent;

  CudaEvent take();  // the context must be current

  const CudaContext& context_;
  std::mutex mutex_;
  std::vector<CudaEvent> idle_;
};

// An event of the context to which the program's stream belongs. The event is reused as soon as
// this object is destroyed. By then, work that must follow it has been ordered behind it.
class PooledEvent final : public RecordedEvent {
 public:
  PooledEvent(EventPool& all, CudaEvent event) : all_(all), event_(std::move(event)) {}
  ~PooledEvent() override;
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;

  static EventHandle event_of(const RecordedEvent& event) {
    return static_cast<const PooledEvent&>(event).event_.get();
  }

 private:
  EventPool& all_;
  CudaEvent event_;
};

}  // namespace gradred::device
