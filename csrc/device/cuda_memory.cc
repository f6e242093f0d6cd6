#include "device/cuda_memory.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "base/errors.h"
#include "base/tell_once.h"
#include "device/cuda_workspace.h"
#include "device/nccl.h"
#include "device/shots.h"

namespace gradred::device {
namespace {

constexpr std::size_t kMostIdleStreams = 256;  // as many as a model has gradients
// The limit unless a call takes more.
constexpr std::size_t kMostSpareBytes = std::size_t{256} << 20;
constexpr std::size_t kMebibyte = std::size_t{1} << 20;

// Rounds to few different lengths, so that memory pinned for one call fits others.
std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kLeast = 4096;
  if (bytes <= kMebibyte) return std::bit_ceil(std::max(bytes, kLeast));
  return (bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
}

// Empty if the driver does not return it.
std::string model_of(const Driver& driver, Ordinal device) {
  char name[256] = "";
  const bool told = driver.call.DeviceGetName(name, sizeof name, device) == kSuccess;
  return told ? name : "";
}

std::uint64_t new_id() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

std::string name_of(const std::string& model, Ordinal device) {
  const std::string name = "CUDA device " + std::to_string(device);
  return model.empty() ? name : name + " (" + model + ")";
}

}  // namespace

// A stream of gradred's, in use.
class Copies final : public DeviceStream {
 public:
  explicit Copies(CudaMemory& memory) : memory_(memory), queue_(memory.take_queue()) { work(); }
  ~Copies() override {
    rest();
    for (CudaEvent& mark : marks_) queue_->marks.push_back(std::move(mark));
    memory_.give_back(std::move(queue_), is_done_);
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void copy(void* target, const void* source, std::size_t bytes) override {
    work();
    if (has_to_wait({target, source, bytes})) return later_.push_back({{target, source, bytes}});
    const ScopedContext scope = memory_.scope();
    queue_->stream.exchange(address_of(target), address_of(source), bytes);
  }
  // Short copies are done by a kernel, because the driver takes some microseconds to start each
  // copy. Long copies use the device's copy engines, so that the device can compute beside them.
  void copy_many(std::span<const CopyPart> parts) override {
    constexpr std::size_t kFew = 4, kLong = std::size_t{256} << 10;
    work();
    const ScopedContext scope = memory_.scope();
    const bool may_launch =
        std::ranges::none_of(parts, [this](const CopyPart& part) { return has_to_wait(part); });
    if (parts.size() <= kFew || !may_launch || !memory_.copies_by_kernel()) {
      return DeviceStream::copy_many(parts);
    }
    std::vector<CopyPart> all(parts.begin(), parts.end());
    const auto is_short = [](const CopyPart& part) { return part.bytes <= kLong; };
    const auto few = std::ranges::partition(all, is_short);
    DeviceStream::copy_many(few);
    memory_.kernels().launch(queue_->stream.get(), {all.begin(), few.begin()});
  }
  void reduce(const Reduction&, void*, const void*, const void*, std::size_t) override { refuse(); }
  void scale(void*, std::size_t, DType, double, bool) override { refuse(); }
  bool ready() override {
    if (is_done_) return true;  // asking the driver takes a microsecond and more
    const ScopedContext scope = memory_.scope();
    return is_done_ = give_later() && queue_->stream.ready();
  }

  void rest() noexcept override {
    if (std::exchange(works_, false)) --memory_.working_streams_;
  }

  std::uint64_t mark() override {
    is_done_ = false;
    if (later_.empty()) {
      const ScopedContext scope = memory_.scope();
      record_mark();
    } else {
      later_.push_back({.is_mark = true});
    }
    return ++made_;
  }
  bool has_passed(std::uint64_t mark) override {
    const ScopedContext scope = memory_.scope();
    give_later();
    while (passed_ < mark && !marks_.empty() && marks_.front().ready()) {
      queue_->marks.push_back(std::move(marks_.front()));
      marks_.pop_front();
      ++passed_;
    }
    return passed_ >= mark;
  }
  void wait_for(const DeviceMoment& moment) override {
    work();
    const ScopedContext scope = memory_.scope();
    queue_->stream.wait_for(CudaMoment::event_of(moment));
  }
  std::shared_ptr<const DeviceMoment> moment() override {
    if (!later_.empty()) return nullptr;
    return memory_.moment_of(reinterpret_cast<std::uint64_t>(queue_->stream.get()));
  }

 private:
  struct Later {
    CopyPart copy{};
    bool is_mark = false;  // a mark instead of a copy
  };

  void work() noexcept {
    is_done_ = false;
    if (!std::exchange(works_, true)) ++memory_.working_streams_;
  }
  // A copy from or to host memory that is not pinned may block the calling thread in the driver
  // until all work before it is done. So it is given to the driver only then.
  bool has_to_wait(const CopyPart& part) {
    return !later_.empty() || memory_.is_plain_host(part.target) ||
           memory_.is_plain_host(part.source);
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
    if (spare.empty()) spare.emplace_back(memory_.driver_);
    spare.back().record(queue_->stream.get());
    marks_.push_back(std::move(spare.back()));
    spare.pop_back();
  }

  [[noreturn]] void refuse() const {
    throw DeviceError("reductions on " + memory_.name() +
                      ": there is no kernel for them. Reduce in host memory");
  }

  CudaMemory& memory_;
  std::unique_ptr<CudaMemory::Queue> queue_;
  std::deque<Later> later_;
  std::deque<CudaEvent> marks_;
  bool works_ = false;
  bool is_done_ = false;  // ready() has found that all work is done
  std::uint64_t made_ = 0, passed_ = 0;
};

namespace {

// The id of a context, which is never reused, unlike its handle. 0 if the driver does not return
// it.
std::uint64_t id_of(const Driver& driver, ContextHandle context) {
  unsigned long long id = 0;
  if (driver.call.CtxGetId == nullptr) return 0;
  return driver.call.CtxGetId(context, &id) == kSuccess ? id : 0;
}

// Objects that live as long as the process. The last one is in use; those before it belonged to
// contexts that have ended.
template <class Made>
struct Kept {
  std::uint64_t id = 0;  // of the last object's context
  std::vector<std::unique_ptr<Made>> made{};
};

// The primary context is retained from the first call on. If it was reset meanwhile, its id differs
// and it is retained again.
ContextHandle primary_of(const Driver& driver, Ordinal device) {
  static auto& all = *new std::map<Ordinal, Kept<PrimaryContext>>;  // never freed
  auto& [id, made] = all[device];
  if (made.empty() || id_of(driver, made.back()->get()) != id) {
    made.push_back(std::make_unique<PrimaryContext>(driver, device));
    id = id_of(driver, made.back()->get());
  }
  return made.back()->get();
}

}  // namespace

// Memory of pools and mapped chunks belongs to no context. For it the device's primary context is
// used, which is retained from then on. What was made in a context that has ended is gone with it
// and must not be destroyed, so the CudaMemory of that context stays, unused.
CudaMemory& CudaMemory::of(const Driver& driver, const PointerInfo& found, const Options& options) {
  static std::mutex mutex;
  static auto& all = *new std::map<ContextHandle, Kept<CudaMemory>>;  // never freed
  const std::lock_guard lock(mutex);
  const ContextHandle context =
      found.context != nullptr ? found.context : primary_of(driver, found.device);
  const std::uint64_t now = id_of(driver, context);
  auto& [id, made] = all[context];
  if (made.empty() || id != now) {
    made.emplace_back(new CudaMemory(driver, context, found.device, options));
    id = now;
  }
  return *made.back();
}

CudaMemory::CudaMemory(const Driver& driver, ContextHandle context, Ordinal device,
                       const Options& options)
    : driver_(driver),
      context_(context),
      device_(device),
      id_(new_id()),
      model_(model_of(driver, device)),
      name_(name_of(model_, device)),
      kernels_(driver, device, options),
      options_(options) {
  driver.check(driver.call.DeviceGetUuid(&uuid_, device), "cuDeviceGetUuid");
}

std::byte* CudaMemory::allocate(std::size_t bytes) {
  const ScopedContext scope = this->scope();
  DeviceAllocation made(driver_, bytes);
  auto* const address = reinterpret_cast<std::byte*>(made.get());
  const std::lock_guard lock(mutex_);
  allocations_[address] = std::move(made);
  return address;
}

void CudaMemory::release(std::byte* address) noexcept {
  DeviceAllocation released;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return;
  released = std::move(found->second);
  allocations_.erase(found);
}

std::byte* CudaMemory::allocate_host(std::size_t bytes) {
  if (std::byte* const pinned = pinned_host(bytes)) return pinned;
  auto plain = std::make_unique_for_overwrite<std::byte[]>(bytes);
  const std::lock_guard lock(mutex_);
  plain_.emplace(plain.get(), bytes);
  plain_count_ = plain_.size();
  return plain.release();
}

std::byte* CudaMemory::pinned_host(std::size_t bytes) {
  const std::size_t length = rounded(bytes);
  catch_up();
  if (std::byte* const spare = spare_host(length)) return spare;
  std::byte* made = nullptr;
  if (!orders_.while_none_is_open([&] { made = pin_host(length); })) {
    const std::lock_guard lock(mutex_);
    const auto all = std::accumulate(wanted_.begin(), wanted_.end(), spare_bytes_ + length);
    if (all <= most_spare_bytes(length)) wanted_.push_back(length);
  }
  return made;
}

bool CudaMemory::is_plain_host(const void* address) {
  if (plain_count_.load(std::memory_order_relaxed) == 0) return false;
  const auto* const at = static_cast<const std::byte*>(address);
  const std::lock_guard lock(mutex_);
  const auto behind = plain_.upper_bound(at);
  if (behind == plain_.begin()) return false;
  const auto [begin, length] = *std::prev(behind);
  return at < begin + length;
}

std::byte* CudaMemory::spare_host(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = spare_.lower_bound(bytes);
  if (found == spare_.end() || found->first > 2 * bytes) return nullptr;
  const auto [length, address] = *found;
  in_use_[address] = length;
  spare_bytes_ -= length;
  spare_.erase(found);
  return address;
}

void CudaMemory::catch_up() {
  std::vector<Dropped> dropped;  // freed without the lock
  std::vector<std::size_t> wanted;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(dropped_);
    wanted.swap(wanted_);
  }
  if (dropped.empty() && wanted.empty()) return;
  const auto all = [&] {
    dropped.clear();
    try {
      for (const std::size_t bytes : wanted) release_host(pin_host(bytes));
    } catch (const DriverError&) {  // a call that needs the memory reports the error
    }
  };
  if (orders_.while_none_is_open(all)) return;
  const std::lock_guard lock(mutex_);
  std::ranges::move(dropped, std::back_inserter(dropped_));
  std::ranges::move(wanted, std::back_inserter(wanted_));
}

void CudaMemory::free_later(ImportedAllocation imported) noexcept {
  if (imported.get() == 0) return;
  {
    const std::lock_guard lock(mutex_);
    dropped_.emplace_back(std::move(imported));
  }
  catch_up();
}

std::byte* CudaMemory::pin_host(std::size_t bytes) {
  const ScopedContext scope = this->scope();
  PinnedAllocation made(driver_, bytes);
  auto* const address = static_cast<std::byte*>(made.get());
  const std::lock_guard lock(mutex_);
  pinned_[address] = std::move(made);
  in_use_[address] = bytes;
  longest_ = std::max(longest_, bytes);
  return address;
}

bool CudaMemory::prepare_kernels(Op op, DType dtype) {
  if (kernels_.has(op, dtype)) return true;
  kernels_.compile(op, dtype);
  return orders_.while_none_is_open([&] {
    const ScopedContext scope = this->scope();  // gradred's own threads have no context
    kernels_.prepare(op, dtype);
  });
}

bool CudaMemory::copies_by_kernel() {
  if (kernels_.has_copies()) return true;
  if (!kernels_.compile_copies()) return false;
  bool loaded = false;
  orders_.while_none_is_open([&] {
    const ScopedContext scope = this->scope();
    loaded = kernels_.load_copies();
  });
  return loaded;
}

// If there is too much spare memory, drops the longest allocations. They are freed later: freeing
// may keep the driver until the device is idle, and the device may be waiting for this thread.
void CudaMemory::release_host(std::byte* address) noexcept {
  const std::lock_guard lock(mutex_);
  if (plain_.erase(address) > 0) {
    plain_count_ = plain_.size();
    delete[] address;
    return;
  }
  const auto used = in_use_.extract(address);
  const auto last = spare_.emplace(used.mapped(), address);
  spare_bytes_ += used.mapped();
  while (spare_bytes_ > most_spare_bytes()) {
    auto longest = std::prev(spare_.end());
    if (longest == last) --longest;  // the next call most likely needs the same length
    spare_bytes_ -= longest->first;
    dropped_.push_back(std::move(pinned_.extract(longest->second).mapped()));
    spare_.erase(longest);
  }
}

// Pinning memory takes many times as long as copying it. So the limit leaves room for twice what
// the longest call takes.
std::size_t CudaMemory::most_spare_bytes(std::size_t next) const {
  return std::max(kMostSpareBytes, 2 * std::max(longest_, next));
}

std::shared_ptr<const DeviceMoment> CudaMemory::moment_of(std::uint64_t stream) {
  const ScopedContext scope = this->scope();
  require_live(stream);
  CudaEvent event = take_moment();
  event.record(reinterpret_cast<StreamHandle>(stream));
  return std::make_shared<CudaMoment>(*this, std::move(event));
}

bool CudaMemory::prepares_later(const void* input, std::size_t bytes, const Reduction* reduction) {
  if (!orders_.has_given_work()) return false;
  if (reduction != nullptr) {
    const auto [op, dtype, on_host] = *reduction;
    const bool has_kernels = Kernels::why_not(op, dtype).empty();
    if (has_kernels && !kernels_.has(op, dtype) && !kernels_.has_refused(op, dtype)) return true;
  }
  return !exported_.find(input, bytes) && programs_.is_new({input, bytes});
}

void CudaMemory::precede(const DeviceMoment& moment, std::uint64_t stream) {
  const ScopedContext scope = this->scope();
  require_live(stream);
  driver_.check(driver_.call.StreamWaitEvent(reinterpret_cast<StreamHandle>(stream),
                                             CudaMoment::event_of(moment), 0),
                "cuStreamWaitEvent");
}

CudaEvent CudaMemory::take_moment() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_moments_.empty()) {
      CudaEvent event = std::move(idle_moments_.back());
      idle_moments_.pop_back();
      return event;
    }
  }
  return CudaEvent(driver_);
}

CudaMoment::~CudaMoment() {
  const std::lock_guard lock(memory_.mutex_);
  if (memory_.idle_moments_.size() < kMostIdleStreams) {
    memory_.idle_moments_.push_back(std::move(event_));
  }
}

bool CudaMemory::is_captured(std::uint64_t stream) const {
  if (driver_.call.StreamIsCapturing == nullptr) return false;
  int capturing = 0;
  const Result code =
      driver_.call.StreamIsCapturing(reinterpret_cast<StreamHandle>(stream), &capturing);
  if (code == kCapturedElsewhere) return true;
  driver_.check(code, "cuStreamIsCapturing");
  return capturing != 0;
}

void CudaMemory::require_live(std::uint64_t stream) const {
  if (!is_captured(stream)) return;
  throw UsageError("a call on arrays of " + name_ +
                   ": a stream that it has to come after is being captured in a CUDA graph, and "
                   "calls cannot be part of one. Make it before or after the capture");
}

std::unique_ptr<DeviceStream> CudaMemory::open_stream() { return std::make_unique<Copies>(*this); }

std::unique_ptr<Workspace> CudaMemory::make_workspace(std::size_t rank, std::size_t ranks,
                                                      std::size_t bytes, std::string& why) {
  std::unique_ptr<Workspace> made;
  try {
    orders_.while_none_is_open([&] {
      const ScopedContext scope = this->scope();
      made = std::make_unique<CudaWorkspace>(*this, rank, ranks, bytes);
    });
  } catch (const DriverError& error) {
    why = error.what();
    tell_once("calls on arrays of " + name() + " go through host memory, which is slow: " + why);
  }
  return made;
}

CollectiveLibrary* CudaMemory::collectives(LibraryKind kind, std::string& why) {
  const std::lock_guard lock(mutex_);
  if (const auto known = collectives_.find(kind); known != collectives_.end()) {
    return known->second.get();
  }
  try {
    auto made = kind == LibraryKind::kNccl ? make_nccl(*this, options_) : make_shots(*this, kind);
    return collectives_.emplace(kind, std::move(made)).first->second.get();
  } catch (const DeviceError& error) {
    why = error.what();
    return nullptr;
  }
}

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
  void wait_for(const DeviceMoment&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw DeviceError("work in the program's own stream: gradred copies nothing there");
  }
};

// The order of calls that need no other order than that of the stream itself.
class DirectOrder final : public StreamOrder {
 public:
  // The memory's context must be current. Everything is created now, before the stream waits for
  // peers.
  DirectOrder(CudaMemory& memory, std::uint64_t stream)
      : memory_(memory), stream_(stream), mark_(memory.orders().open_mark()) {
    if (mark_ == nullptr) end_.emplace(memory.driver());
  }

  std::optional<std::uint64_t> stream() const override { return stream_; }
  bool mark() override {
    if (is_captured()) return false;
    const ScopedContext scope = memory_.scope();
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
  void begin() override { open_.emplace(memory_.orders()); }
  // A capture cannot depend on work that is not captured with it, so the program must have ordered
  // the streams itself.
  void follow(DeviceMemory& device, std::uint64_t stream) override {
    if (stream == stream_ || is_captured()) return;
    wait(stream_, CudaMoment::event_of(*device.moment_of(stream)));
  }
  // The stream waits for all that the call's stream has been given by now, which may be more than
  // the call.
  void precede(std::uint64_t stream) override {
    if (stream == stream_) return;
    const ScopedContext scope = memory_.scope();
    CudaEvent moment(memory_.driver());
    moment.record(reinterpret_cast<StreamHandle>(stream_));
    wait(stream, moment.get());
  }
  std::unique_ptr<DeviceStream> input() override { return std::make_unique<NoCopies>(); }
  std::unique_ptr<DeviceStream> result(void*, const void*, std::size_t, std::size_t) override {
    return std::make_unique<NoCopies>();
  }
  void release() noexcept override {}
  // Uses a stream of gradred's, because the program may be capturing its own.
  void check() override { static_cast<void>(memory_.open_stream()->ready()); }

 private:
  bool end_has_passed() const {
    const ScopedContext scope = memory_.scope();
    return end_->ready();
  }
  bool is_captured() const {
    const ScopedContext scope = memory_.scope();
    return memory_.is_captured(stream_);
  }
  void wait(std::uint64_t stream, EventHandle moment) {
    const ScopedContext scope = memory_.scope();
    const Driver& driver = memory_.driver();
    driver.check(driver.call.StreamWaitEvent(reinterpret_cast<StreamHandle>(stream), moment, 0),
                 "cuStreamWaitEvent");
  }

  CudaMemory& memory_;
  std::optional<Orders::Open> open_;  // until the stream has passed the mark
  const std::uint64_t stream_;
  const std::unique_ptr<Orders::Mark> mark_;
  std::optional<CudaEvent> end_;  // used if the device writes no words to host memory
};

}  // namespace

std::shared_ptr<StreamOrder> CudaMemory::open_direct_order(std::uint64_t stream) {
  const ScopedContext scope = this->scope();
  return std::make_shared<DirectOrder>(*this, stream);
}

std::unique_ptr<CudaMemory::Queue> CudaMemory::take_queue() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto queue = std::move(idle_.back());
      idle_.pop_back();
      return queue;
    }
  }
  const ScopedContext scope = this->scope();
  return std::make_unique<Queue>(Queue{CudaStream(driver_)});
}

// A stream that still has work to do, or has failed, is not reused.
void CudaMemory::give_back(std::unique_ptr<Queue> queue, bool is_done) noexcept {
  if (!is_done) {
    try {
      const ScopedContext scope = this->scope();
      if (!queue->stream.ready()) return;
    } catch (const DriverError&) {
      return;
    }
  }
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMostIdleStreams) idle_.push_back(std::move(queue));
}

}  // namespace gradred::device
