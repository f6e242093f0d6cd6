#include "device/streams/cuda_order.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "device/streams/event_pool.h"

namespace gradred::device {
namespace {

constexpr unsigned kNotBefore = 0;  // CU_STREAM_WAIT_VALUE_GEQ, for counters that wrap around

bool has_come(std::uint32_t count, std::uint32_t wanted) {
  return static_cast<std::int32_t>(count - wanted) >= 0;
}

StreamHandle handle_of(std::uint64_t stream) { return reinterpret_cast<StreamHandle>(stream); }

// Later work of the stream waits until the word has reached the count.
void await(const Driver& driver, const CudaStream& stream, const std::atomic<std::uint32_t>& word,
           std::uint32_t count) {
  driver.check(driver.call.StreamWaitValue32(stream.get(), address_of(&word), count, kNotBefore),
               "cuStreamWaitValue32");
}

// The stream stores the count in the word after all earlier work.
void tell(const Driver& driver, const CudaStream& stream, const std::atomic<std::uint32_t>& word,
          std::uint32_t count) {
  driver.check(driver.call.StreamWriteValue32(stream.get(), address_of(&word), count, 0),
               "cuStreamWriteValue32");
}

}  // namespace

// The order of one call.
class CudaOrder final : public StreamOrder, public std::enable_shared_from_this<CudaOrder> {
 public:
  CudaOrder(Orders& orders, Orders::Lane& lane, std::unique_ptr<Orders::Slot> slot,
            std::vector<HostAllocation> host)
      : StreamOrder(std::move(host)), orders_(orders), lane_(lane), slot_(std::move(slot)) {}
  ~CudaOrder() override {
    release();
    orders_.give_back(std::move(slot_));
  }
  CudaOrder(const CudaOrder&) = delete;
  CudaOrder& operator=(const CudaOrder&) = delete;

  void follow(DeviceMemory& device, std::uint64_t stream) override {
    const auto event = device.event_of(stream);
    const ScopedContext scope = context().scope();
    lane_.input.wait_for(PooledEvent::event_of(*event));
    lane_.result.wait_for(PooledEvent::event_of(*event));
  }

  std::unique_ptr<DeviceStream> input() override {
    return std::make_unique<Input>(shared_from_this());
  }

  std::unique_ptr<DeviceStream> result(void* target, const void* source, std::size_t bytes,
                                       std::size_t piece) override {
    auto held = std::make_unique<Result>(shared_from_this(), source, bytes, piece);
    if (bytes > 0) open_.emplace(orders_.gate_);
    const ScopedContext scope = context().scope();
    for (std::size_t at = 0; at < bytes; at += piece) {
      await(slot_->words->released, slot_->to_release + 1);
      ++slot_->to_release;
      const std::size_t length = std::min(piece, bytes - at);
      lane_.result.exchange(address_of(target) + at, address_of(source) + at, length);
    }
    if (bytes > 0) {
      tell(lane_.result, slot_->words->written, slot_->to_write + 1);
      ++slot_->to_write;
    }
    // Without a result the program's stream waits until the input has been read.
    if (bytes == 0) await(slot_->words->read, slot_->to_read);
    slot_->end.record(lane_.result.get());
    return held;
  }

  void release() noexcept override { let_go(slot_->to_release); }

  void precede(std::uint64_t stream) override {
    const ScopedContext scope = context().scope();
    context().require_live(stream);
    const Driver& driver = context().driver();
    driver.check(driver.call.StreamWaitEvent(handle_of(stream), slot_->end.get(), 0),
                 "cuStreamWaitEvent");
  }

  void check() override {
    const ScopedContext scope = context().scope();
    static_cast<void>(lane_.input.ready() && lane_.result.ready());
  }

 private:
  // The common part of inputs and results: copies are the only work, and the driver is never
  // queried.
  class Part : public DeviceStream {
   public:
    explicit Part(std::shared_ptr<CudaOrder> order) : order_(std::move(order)) {}
    void reduce(const Reduction&, void*, const void*, const void*, std::size_t) override {
      refuse();
    }
    void scale(void*, std::size_t, DType, double, bool) override { refuse(); }
    void wait_for(const RecordedEvent&) override { refuse(); }

   protected:
    [[noreturn]] static void refuse() {
      throw DeviceError("copies in the order of a stream: nothing else is done there");
    }
    Orders::Slot& slot() const { return *order_->slot_; }

    const std::shared_ptr<CudaOrder> order_;
  };

  class Input final : public Part {
   public:
    explicit Input(std::shared_ptr<CudaOrder> order)
        : Part(std::move(order)), before_(slot().to_read) {}
    void copy(void* target, const void* source, std::size_t bytes) override {
      if (bytes == 0) return;
      const ScopedContext scope = order_->context().scope();
      order_->lane_.input.exchange(address_of(target), address_of(source), bytes);
      order_->tell(order_->lane_.input, slot().words->read, slot().to_read + 1);
      ++slot().to_read;
    }
    bool ready() override { return has_read(slot().to_read); }
    std::uint64_t mark() override { return slot().to_read - before_; }
    bool has_passed(std::uint64_t mark) override {
      return has_read(before_ + static_cast<std::uint32_t>(mark));
    }

   private:
    bool has_read(std::uint32_t pieces) const {
      return has_come(slot().words->read.load(std::memory_order_acquire), pieces);
    }

    const std::uint32_t before_;  // pieces that earlier calls have read with this slot
  };

  class Result final : public Part {
   public:
    Result(std::shared_ptr<CudaOrder> order, const void* source, std::size_t bytes,
           std::size_t piece)
        : Part(std::move(order)),
          source_(address_of(source)),
          bytes_(bytes),
          piece_(piece),
          before_(slot().to_release) {}
    void copy(void*, const void* source, std::size_t bytes) override {
      const std::size_t end = address_of(source) - source_ + bytes;
      const auto pieces =
          end == bytes_ ? slot().to_release - before_ : static_cast<std::uint32_t>(end / piece_);
      order_->let_go(before_ + pieces);
    }
    bool ready() override {
      return has_come(slot().words->written.load(std::memory_order_acquire), slot().to_write);
    }
    std::uint64_t mark() override { refuse(); }
    bool has_passed(std::uint64_t) override { refuse(); }

   private:
    const Address source_;
    const std::size_t bytes_, piece_;
    const std::uint32_t before_;
  };

  const CudaContext& context() const { return orders_.context_; }
  void let_go(std::uint32_t pieces) {
    slot_->words->released.store(pieces, std::memory_order_release);
    if (pieces == slot_->to_release) open_.reset();
  }
  void await(const std::atomic<std::uint32_t>& word, std::uint32_t count) {
    device::await(context().driver(), lane_.result, word, count);
  }
  void tell(const CudaStream& stream, const std::atomic<std::uint32_t>& word, std::uint32_t count) {
    device::tell(context().driver(), stream, word, count);
  }

  Orders& orders_;
  std::optional<DriverGate::Open> open_;  // while a copy is held back
  Orders::Lane& lane_;
  std::unique_ptr<Orders::Slot> slot_;
};

// The counts do not change any more while other threads read them.
Orders::Given::Given(Orders& orders, std::unique_ptr<Slot> slot)
    : orders_(orders), slot_(std::move(slot)), open_(orders.gate_) {
  ++slot_->to_read;
  ++slot_->to_write;
  slot_->to_release += 2;
  ++orders_.given_;
}

Orders::Given::~Given() {
  end();
  if (enqueued_) {
    orders_.give_back(std::move(slot_));
  } else {
    static_cast<void>(slot_.release());  // nobody knows what the device still writes there
  }
}

void Orders::Given::enqueue(const CudaStream& stream, const std::function<void()>& work) {
  const Driver& driver = orders_.context_.driver();
  Words& words = *slot_->words;
  tell(driver, stream, words.read, slot_->to_read);
  await(driver, stream, words.released, slot_->to_release - 1);
  work();
  tell(driver, stream, words.written, slot_->to_write);
  await(driver, stream, words.released, slot_->to_release);
  enqueued_ = true;
}

bool Orders::Given::input_is_there() const {
  return has_come(slot_->words->read.load(std::memory_order_acquire), slot_->to_read);
}

void Orders::Given::begin() noexcept {
  slot_->words->released.store(slot_->to_release - 1, std::memory_order_release);
}

bool Orders::Given::is_done() const {
  return has_come(slot_->words->written.load(std::memory_order_acquire), slot_->to_write);
}

void Orders::Given::end() noexcept {
  slot_->words->released.store(slot_->to_release, std::memory_order_release);
  if (!open_) return;
  open_.reset();
  --orders_.given_;
}

// Everything that takes time in the driver, or may make it wait, is done before a copy is held
// back.
std::shared_ptr<StreamOrder> Orders::open(std::uint64_t stream,
                                          std::span<const std::size_t> host_bytes,
                                          std::string& why) {
  const std::lock_guard lock(mutex_);
  why = why_none();
  if (!why.empty()) return nullptr;
  // The work of such calls could end up behind the program's stream. If operations are carried out
  // one after the other, that stream would in turn wait for the work.
  if (streams_.has_work_to_come()) return nullptr;
  std::vector<HostAllocation> host;
  for (const std::size_t bytes : host_bytes) {
    if (bytes == 0) continue;
    std::byte* const pinned = host_.allocate_pinned(bytes);
    if (pinned == nullptr) return nullptr;
    host.emplace_back(memory_, pinned);
  }
  const ScopedContext scope = context_.scope();
  Lane* const found = lane_of(stream);
  if (found == nullptr) {
    why = "calls are in flight in the order of " + std::to_string(kMostLanes) + " streams already";
    return nullptr;
  }
  Lane& lane = *found;
  std::unique_ptr<Slot> slot = take_slot();
  if (slot == nullptr) return nullptr;
  if (!probed_) {
    try {
      probe(lane.result, *slot->words);
    } catch (const DriverError& error) {
      why_not_ = why = error.what();
      give_back(std::move(slot));
      return nullptr;
    }
  }
  return std::make_shared<CudaOrder>(*this, lane, std::move(slot), std::move(host));
}

std::string Orders::why_none() const {
  const Functions& call = context_.driver().call;
  if (call.StreamWaitValue32 == nullptr || call.StreamWriteValue32 == nullptr) {
    return "the CUDA driver has no cuStreamWaitValue32";
  }
  return why_not_.value_or("");
}

std::unique_ptr<Orders::Slot> Orders::take_probed_slot() {
  const std::lock_guard lock(mutex_);
  if (!why_none().empty()) return nullptr;
  std::unique_ptr<Slot> slot = take_slot();
  if (slot == nullptr) return nullptr;
  if (!probed_) {
    try {
      const CudaStream own(context_.driver(), Urgency::kFirst);
      probe(own, *slot->words);
    } catch (const DriverError& error) {
      why_not_ = error.what();
      give_back(std::move(slot));
      return nullptr;
    }
  }
  return slot;
}

std::unique_ptr<Orders::Mark> Orders::open_mark() {
  std::unique_ptr<Slot> slot = take_probed_slot();
  return slot == nullptr ? nullptr : std::make_unique<Mark>(*this, std::move(slot));
}

std::unique_ptr<Orders::Given> Orders::give() {
  std::unique_ptr<Slot> slot = take_probed_slot();
  return slot == nullptr ? nullptr : std::make_unique<Given>(*this, std::move(slot));
}

void Orders::Mark::set(StreamHandle stream) {
  const Driver& driver = orders_.context_.driver();
  const Address word = address_of(&slot_->words->written);
  driver.check(driver.call.StreamWriteValue32(stream, word, slot_->to_write + 1, 0),
               "cuStreamWriteValue32");
  ++slot_->to_write;
}

// A stream pair is given to another program stream once it has nothing to do, so that unrelated
// streams do not wait for each other.
Orders::Lane* Orders::lane_of(std::uint64_t stream) {
  constexpr std::uint64_t kOfThread = 2;  // CU_STREAM_PER_THREAD
  const std::thread::id thread =
      stream == kOfThread ? std::this_thread::get_id() : std::thread::id();
  for (const auto& lane : lanes_) {
    if (lane->stream == stream && lane->thread == thread) return lane.get();
  }
  for (const auto& lane : lanes_) {
    if (!lane->input.ready() || !lane->result.ready()) continue;
    lane->stream = stream;
    lane->thread = thread;
    return lane.get();
  }
  if (lanes_.size() == kMostLanes) return nullptr;
  const Driver& driver = context_.driver();
  lanes_.push_back(std::make_unique<Lane>(Lane{
      CudaStream(driver, Urgency::kFirst), CudaStream(driver, Urgency::kFirst), stream, thread}));
  return lanes_.back().get();
}

std::unique_ptr<Orders::Slot> Orders::free_slot() {
  const std::lock_guard lock(slots_mutex_);
  for (auto& slot : slots_) {
    if (!slot->is_free()) continue;
    std::swap(slot, slots_.back());
    auto taken = std::move(slots_.back());
    slots_.pop_back();
    return taken;
  }
  return nullptr;
}

std::unique_ptr<Orders::Slot> Orders::take_slot() {
  if (auto slot = free_slot()) return slot;
  constexpr std::size_t kPage = 4096;
  PinnedAllocation page;
  if (!gate_.while_none_is_open([&] { page = PinnedAllocation(context_.driver(), kPage); })) {
    return nullptr;
  }
  auto* const words = static_cast<Words*>(page.get());
  pages_.push_back(std::move(page));
  std::vector<std::unique_ptr<Slot>> made;
  for (std::size_t i = 0; i < kPage / sizeof(Words); ++i) {
    made.push_back(
        std::make_unique<Slot>(Slot{new (words + i) Words, CudaEvent(context_.driver())}));
  }
  auto taken = std::move(made.back());
  made.pop_back();
  const std::lock_guard lock(slots_mutex_);
  std::ranges::move(made, std::back_inserter(slots_));
  return taken;
}

void Orders::give_back(std::unique_ptr<Slot> slot) noexcept {
  const std::lock_guard lock(slots_mutex_);
  try {
    slots_.push_back(std::move(slot));
  } catch (const std::bad_alloc&) {
    static_cast<void>(slot.release());  // the device may still write to its words
  }
}

// Tests whether the device really writes to host memory, and continues when it reads the value
// there.
void Orders::probe(const CudaStream& stream, Words& words) {
  const Driver& driver = context_.driver();
  const Functions& call = driver.call;
  const Address word = address_of(&words.read);
  driver.check(call.StreamWriteValue32(stream.get(), word, 1, 0), "cuStreamWriteValue32");
  driver.check(call.StreamWaitValue32(stream.get(), word, 1, kNotBefore), "cuStreamWaitValue32");
  driver.check(call.StreamWriteValue32(stream.get(), word, 0, 0), "cuStreamWriteValue32");
  stream.synchronize();
  probed_ = true;
}

}  // namespace gradred::device
