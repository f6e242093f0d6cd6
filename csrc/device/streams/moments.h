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

// The events of one context with which moments are marked; they are reused.
class Moments {
 public:
  explicit Moments(const CudaContext& context) : context_(context) {}

  // See DeviceMemory::moment_of() and precede(). Both throw UsageError if the stream is being
  // captured.
  std::shared_ptr<const DeviceMoment> of(std::uint64_t stream);
  void precede(const DeviceMoment& moment, std::uint64_t stream) const;

 private:
  friend class CudaMoment;

  CudaEvent take();  // the context must be current

  const CudaContext& context_;
  std::mutex mutex_;
  std::vector<CudaEvent> idle_;
};

// An event of the context to which the program's stream belongs. The event is reused as soon as
// this object is destroyed. By then, work that must follow it has been ordered behind it.
class CudaMoment final : public DeviceMoment {
 public:
  CudaMoment(Moments& all, CudaEvent event) : all_(all), event_(std::move(event)) {}
  ~CudaMoment() override;
  CudaMoment(const CudaMoment&) = delete;
  CudaMoment& operator=(const CudaMoment&) = delete;

  static EventHandle event_of(const DeviceMoment& moment) {
    return static_cast<const CudaMoment&>(moment).event_.get();
  }

 private:
  Moments& all_;
  CudaEvent event_;
};

}  // namespace gradred::device
