#include "device/streams/direct_order.h"

#include <cstddef>
#include <optional>

#include "base/errors.h"
#include "device/streams/event_pool.h"

namespace gradred::device {
namespace {

// For work in the program's stream itself. Releasing it calls no driver function.
class NoCopies final : public DeviceStream {
 public:
  void copy(void*, const void*, std::size_t) override { refuse(); }
  void reduce(const Reduction&, void*, const void*, const void*, std::size_t) override { refuse(); }
  void scale(void*, std::size_t, DType, double, bool) override { refuse(); }
  bool ready() override { return true; }
  std::uint64_t mark() override { refuse(); }
  bool has_passed(std::uint64_t) override { refuse(); }
  void wait_for(const RecordedEvent&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw DeviceError("work in the program's own stream: gradred copies nothing there");
  }
};

// The order of calls that need no other order than that of the stream itself.
class DirectOrder final : public StreamOrder {
 public:
  // The context must be current. Everything is created now, before the stream waits for
  // peers.
  DirectOrder(const CudaContext& context, DriverGate& gate, Orders& orders, CudaStreams& streams,
              std::uint64_t stream)
      : context_(context),
        gate_(gate),
        streams_(streams),
        stream_(stream),
        mark_(orders.open_mark()) {
    if (mark_ == nullptr) end_.emplace(context.driver());
  }

  std::optional<std::uint64_t> stream() const override { return stream_; }
  bool mark() override {
    if (is_captured()) return false;
    const ScopedContext scope = context_.scope();
    const StreamHandle handle = reinterpret_cast<StreamHandle>(stream_);
    mark_ != nullptr ? mark_->set(handle) : end_->record(handle);
    return true;
  }
  bool has_passed() override {
    const bool passed = mark_ != nullptr ? mark_->has_passed() : end_has_passed();
    if (passed) open_.reset();
    return passed;
  }
  bool asks_driver() const override { return mark_ == nullptr; }
  void begin() override { open_.emplace(gate_); }
  // A capture cannot depend on work that is not captured with it, so the program must have ordered
  // the streams itself.
  void follow(DeviceMemory& device, std::uint64_t stream) override {
    if (stream == stream_ || is_captured()) return;
    wait(stream_, PooledEvent::event_of(*device.event_of(stream)));
  }
  // The stream waits for all that the call's stream has been given by now, which may be more than
  // the call.
  void precede(std::uint64_t stream) override {
    if (stream == stream_) return;
    const ScopedContext scope = context_.scope();
    CudaEvent event(context_.driver());
    event.record(reinterpret_cast<StreamHandle>(stream_));
    wait(stream, event.get());
  }
  std::unique_ptr<DeviceStream> input() override { return std::make_unique<NoCopies>(); }
  std::unique_ptr<DeviceStream> result(void*, const void*, std::size_t, std::size_t) override {
    return std::make_unique<NoCopies>();
  }
  void release() noexcept override {}
  // Uses a stream of gradred's, because the program may be capturing its own.
  void check() override { static_cast<void>(streams_.open()->ready()); }

 private:
  bool end_has_passed() const {
    const ScopedContext scope = context_.scope();
    return end_->ready();
  }
  bool is_captured() const {
    const ScopedContext scope = context_.scope();
    return context_.is_captured(stream_);
  }
  void wait(std::uint64_t stream, EventHandle event) {
    const ScopedContext scope = context_.scope();
    const Driver& driver = context_.driver();
    driver.check(driver.call.StreamWaitEvent(reinterpret_cast<StreamHandle>(stream), event, 0),
                 "cuStreamWaitEvent");
  }

  const CudaContext& context_;
  DriverGate& gate_;
  CudaStreams& streams_;
  std::optional<DriverGate::Open> open_;  // until the stream has passed the mark
  const std::uint64_t stream_;
  const std::unique_ptr<Orders::Mark> mark_;
  std::optional<CudaEvent> end_;  // used if the device writes no words to host memory
};

}  // namespace

std::shared_ptr<StreamOrder> open_direct_order(const CudaContext& context, DriverGate& gate,
                                               Orders& orders, CudaStreams& streams,
                                               std::uint64_t stream) {
  return std::make_shared<DirectOrder>(context, gate, orders, streams, stream);
}

}  // namespace gradred::device
