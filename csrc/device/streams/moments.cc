#include "device/streams/moments.h"

namespace gradred::device {
namespace {

constexpr std::size_t kMostIdleMoments = 256;  // as many as a model has gradients

}  // namespace

std::shared_ptr<const DeviceMoment> Moments::of(std::uint64_t stream) {
  const ScopedContext scope = context_.scope();
  context_.require_live(stream);
  CudaEvent event = take();
  event.record(reinterpret_cast<StreamHandle>(stream));
  return std::make_shared<CudaMoment>(*this, std::move(event));
}

void Moments::precede(const DeviceMoment& moment, std::uint64_t stream) const {
  const ScopedContext scope = context_.scope();
  context_.require_live(stream);
  const Driver& driver = context_.driver();
  driver.check(driver.call.StreamWaitEvent(reinterpret_cast<StreamHandle>(stream),
                                           CudaMoment::event_of(moment), 0),
               "cuStreamWaitEvent");
}

CudaEvent Moments::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      CudaEvent event = std::move(idle_.back());
      idle_.pop_back();
      return event;
    }
  }
  return CudaEvent(context_.driver());
}

CudaMoment::~CudaMoment() {
  const std::lock_guard lock(all_.mutex_);
  if (all_.idle_.size() < kMostIdleMoments) all_.idle_.push_back(std::move(event_));
}

}  // namespace gradred::device
