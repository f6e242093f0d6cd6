#include "device/streams/event_pool.h"

namespace gradred::device {
namespace {

constexpr std::size_t kMostIdleEvents = 256;  // as many as a model has gradients

}  // namespace

std::shared_ptr<const RecordedEvent> EventPool::of(std::uint64_t stream) {
  const ScopedContext scope = context_.scope();
  context_.require_live(stream);
  CudaEvent event = take();
  event.record(reinterpret_cast<StreamHandle>(stream));
  return std::make_shared<PooledEvent>(*this, std::move(event));
}

void EventPool::precede(const RecordedEvent& event, std::uint64_t stream) const {
  const ScopedContext scope = context_.scope();
  context_.require_live(stream);
  const Driver& driver = context_.driver();
  driver.check(driver.call.StreamWaitEvent(reinterpret_cast<StreamHandle>(stream),
                                           PooledEvent::event_of(event), 0),
               "cuStreamWaitEvent");
}

CudaEvent EventPool::take() {
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

PooledEvent::~PooledEvent() {
  const std::lock_guard lock(all_.mutex_);
  if (all_.idle_.size() < kMostIdleEvents) all_.idle_.push_back(std::move(event_));
}

}  // namespace gradred::device
