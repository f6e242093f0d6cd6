#include "device/streams/cuda_streams.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>

#include "base/errors.h"

namespace gradred::device {
namespace {

constexpr std::size_t kMostIdleStreams = 256;  // as many as a model has gradients

}  // namespace

// A stream of gradred's, in use.
class Copies final : public DeviceStream {
 public:
  explicit Copies(CudaStreams& all) : all_(all), queue_(all.take_queue()) { work(); }
  ~Copies() override {
    rest();
    for (CudaEvent& mark : marks_) queue_->marks.push_back(std::move(mark));
    all_.give_back(std::move(queue_), is_done_);
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void copy(void* target, const void* source, std::size_t bytes) override {
    work();
    if (has_to_wait({target, source, bytes})) return later_.push_back({{target, source, bytes}});
    const ScopedContext scope = all_.context_.scope();
    queue_->stream.exchange(address_of(target), address_of(source), bytes);
  }
  // Short copies are done by a kernel, because the driver takes some microseconds to start each
  // copy. Long copies use the device's copy engines, so that the device can compute beside them.
  void copy_many(std::span<const CopyPart> parts) override {
    constexpr std::size_t kFew = 4, kLong = std::size_t{256} << 10;
    work();
    const ScopedContext scope = all_.context_.scope();
    const bool may_launch =
        std::ranges::none_of(parts, [this](const CopyPart& part) { return has_to_wait(part); });
    if (parts.size() <= kFew || !may_launch || !all_.kernels_.prepare_copies()) {
      return DeviceStream::copy_many(parts);
    }
    std::vector<CopyPart> all(parts.begin(), parts.end());
    const auto is_short = [](const CopyPart& part) { return part.bytes <= kLong; };
    const auto few = std::ranges::partition(all, is_short);
    DeviceStream::copy_many(few);
    all_.kernels_.kernels().launch(queue_->stream.get(), {all.begin(), few.begin()});
  }
  void reduce(const Reduction&, void*, const void*, const void*, std::size_t) override { refuse(); }
  void scale(void*, std::size_t, DType, double, bool) override { refuse(); }
  bool ready() override {
    if (is_done_) return true;  // asking the driver takes a microsecond and more
    const ScopedContext scope = all_.context_.scope();
    return is_done_ = give_later() && queue_->stream.ready();
  }

  void rest() noexcept override {
    if (std::exchange(works_, false)) --all_.working_;
  }

  std::uint64_t mark() override {
    is_done_ = false;
    if (later_.empty()) {
      const ScopedContext scope = all_.context_.scope();
      record_mark();
    } else {
      later_.push_back({.is_mark = true});
    }
    return ++made_;
  }
  bool has_passed(std::uint64_t mark) override {
    const ScopedContext scope = all_.context_.scope();
    give_later();
    while (passed_ < mark && !marks_.empty() && marks_.front().ready()) {
      queue_->marks.push_back(std::move(marks_.front()));
      marks_.pop_front();
      ++passed_;
    }
    return passed_ >= mark;
  }
  void wait_for(const RecordedEvent& event) override {
    work();
    const ScopedContext scope = all_.context_.scope();
    queue_->stream.wait_for(PooledEvent::event_of(event));
  }
  std::shared_ptr<const RecordedEvent> event() override {
    if (!later_.empty()) return nullptr;
    return all_.events_.of(reinterpret_cast<std::uint64_t>(queue_->stream.get()));
  }

 private:
  struct Later {
    CopyPart copy{};
    bool is_mark = false;  // a mark instead of a copy
  };

  void work() noexcept {
    is_done_ = false;
    if (!std::exchange(works_, true)) ++all_.working_;
  }
  // A copy from or to host memory that is not pinned may block the calling thread in the driver
  // until all work before it is done. So it is given to the driver only then.
  bool has_to_wait(const CopyPart& part) {
    return !later_.empty() || all_.host_.is_plain(part.target) || all_.host_.is_plain(part.source);
  }
  bool give_later() {  // returns false if some have to wait longer
    while (!later_.empty()) {
      if (!queue_->stream.ready()) return false;
      const auto [copy, is_mark] = later_.front();
      later_.pop_front();
      if (is_mark) {
        record_mark();
      } else {
        queue_->stream.exchange(address_of(copy.target), address_of(copy.source), copy.bytes);
      }
    }
    return true;
  }
  void record_mark() {
    std::vector<CudaEvent>& spare = queue_->marks;
    if (spare.empty()) spare.emplace_back(all_.context_.driver());
    spare.back().record(queue_->stream.get());
    marks_.push_back(std::move(spare.back()));
    spare.pop_back();
  }

  [[noreturn]] void refuse() const {
    throw DeviceError("reductions on " + all_.context_.name() +
                      ": there is no kernel for them. Reduce in host memory");
  }

  CudaStreams& all_;
  std::unique_ptr<CudaStreams::Queue> queue_;
  std::deque<Later> later_;
  std::deque<CudaEvent> marks_;
  bool works_ = false;
  bool is_done_ = false;  // ready() has found that all work is done
  std::uint64_t made_ = 0, passed_ = 0;
};

std::unique_ptr<DeviceStream> CudaStreams::open() { return std::make_unique<Copies>(*this); }

std::unique_ptr<CudaStreams::Queue> CudaStreams::take_queue() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto queue = std::move(idle_.back());
      idle_.pop_back();
      return queue;
    }
  }
  const ScopedContext scope = context_.scope();
  return std::make_unique<Queue>(Queue{CudaStream(context_.driver())});
}

// A stream that still has work to do, or has failed, is not reused.
void CudaStreams::give_back(std::unique_ptr<Queue> queue, bool is_done) noexcept {
  if (!is_done) {
    try {
      const ScopedContext scope = context_.scope();
      if (!queue->stream.ready()) return;
    } catch (const DriverError&) {
      return;
    }
  }
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMostIdleStreams) idle_.push_back(std::move(queue));
}

}  // namespace gradred::device
