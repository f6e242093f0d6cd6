#include "device/ipc/cuda_workspace.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "base/tell_once.h"

namespace gradred::device {

namespace {

struct PartContent {
  NumberedBlock block;
  Uuid device;
  std::uint64_t offset, bytes, seed;
};

}  // namespace

CudaWorkspace::Pattern CudaWorkspace::pattern_of(std::uint64_t seed) {
  Pattern pattern{};
  for (std::uint64_t& word : pattern.words) word = seed = seed * 0x9e3779b97f4a7c15ULL + 1;
  return pattern;
}

CudaWorkspace::CudaWorkspace(const CudaParts& parts, std::size_t rank, std::size_t ranks,
                             std::size_t bytes)
    : cuda_(parts),
      rank_(rank),
      seed_(now_ns() + static_cast<std::uint64_t>(getpid())),
      own_(parts.exported, bytes),
      parts_(ranks),
      offsets_(ranks),
      stream_(parts.context.driver()),
      arrays_(parts, ranks, stream_) {
  facts_.bytes = bytes;
  facts_.is_used_by_turns = !is_served_by_mps(parts.context.driver());
  facts_.most_targets = Kernels::kMostTargets;
  const Pattern pattern = pattern_of(seed_);
  stream_.copy(address_of(own_.get()), address_of(&pattern), sizeof pattern);
  stream_.synchronize();
}

// No work is in flight: if an operation was cut off, abandon() was called.
CudaWorkspace::~CudaWorkspace() {
  for (const OpenedBlock& one : parts_) cuda_.of_peers.let_go(one.key);
}

bool CudaWorkspace::attempt(const std::function<void()>& open) {
  return cuda_.gate.while_none_is_open([&] {
    cuda_.of_peers.close_ended();
    open();
  });
}

Ticket CudaWorkspace::ticket() {
  const SharedPlace place = cuda_.exported.find(own_.get(), facts_.bytes);
  return as_ticket(PartContent{block_of(cuda_, place), cuda_.context.uuid(), place.offset(),
                               facts_.bytes, seed_});
}

void CudaWorkspace::open(std::size_t rank, const Ticket& ticket) {
  const ScopedContext scope = cuda_.context.scope();
  const auto theirs = content_of<PartContent>(ticket);
  // It may be open from an earlier attempt, in which another rank failed.
  if (parts_[rank].begin == 0) parts_[rank] = gradred::device::open(cuda_, theirs.block);
  offsets_[rank] = theirs.offset;
  Pattern found{};
  stream_.copy(address_of(&found), part_of(rank), sizeof found);
  stream_.synchronize();
  const Pattern wanted = pattern_of(theirs.seed);
  if (std::memcmp(&found, &wanted, sizeof wanted) != 0) refuse_content(rank);
  facts_.bytes = std::min<std::size_t>(facts_.bytes, theirs.bytes);
  facts_.is_of_one_device &= cuda_.context.uuid() == theirs.device;
}

bool CudaWorkspace::reduces(Op op, DType dtype, std::string& why) {
  why = Kernels::why_not(op, dtype);
  if (!why.empty()) return false;
  try {
    if (cuda_.kernels.prepare(op, dtype)) return true;
    why = "their kernels are loaded when no stream waits for peers any longer";
  } catch (const DeviceError& error) {
    why = error.what();
    tell_once("calls with the operation " + std::string(name_of(op)) + " on " +
              std::string(name_of(dtype)) + " arrays of " + cuda_.context.name() +
              " go through host memory, which is slow: " + why);
  }
  return false;
}

// ---- work ---------------------------------------------------------------------------------------

std::byte* CudaWorkspace::part(std::size_t rank, std::size_t place) {
  return reinterpret_cast<std::byte*>(part_of(rank) + place);
}

void CudaWorkspace::copy(void* target, const void* source, std::size_t bytes) {
  const ScopedContext scope = cuda_.context.scope();
  stream_.copy(address_of(target), address_of(source), bytes);
}

void CudaWorkspace::copy_scaled(void* target, const void* source, DType dtype, std::size_t count,
                                double factor) {
  const ScopedContext scope = cuda_.context.scope();
  KernelCall call{.dtype = dtype, .targets = {&target, 1}, .inputs = {&source, 1}, .count = count};
  call.scale = KernelCall::Scale{factor, false};
  cuda_.kernels.kernels().launch(stream_.get(), call);
}

void CudaWorkspace::reduce(Op op, DType dtype, std::span<void* const> targets,
                           std::span<const void* const> inputs, std::size_t count) {
  const ScopedContext scope = cuda_.context.scope();
  KernelCall call{.op = op, .dtype = dtype, .targets = targets, .inputs = inputs, .count = count};
  if (op == Op::kPremul) call.op = Op::kSum;
  if (op == Op::kAvg) {
    call.op = Op::kSum;
    call.scale = KernelCall::Scale{static_cast<double>(inputs.size()), true};
  }
  cuda_.kernels.kernels().launch(stream_.get(), call);
}

bool CudaWorkspace::ready() {
  const ScopedContext scope = cuda_.context.scope();
  return stream_.ready();
}

class CudaWorkspace::Work final : public EnqueuedWork {
 public:
  Work(CudaWorkspace& workspace, std::shared_ptr<const RecordedEvent> before,
       std::unique_ptr<Orders::Given> given)
      : workspace_(workspace), before_(std::move(before)), given_(std::move(given)) {}
  void enqueue(const std::function<void()>& work, EndEvent& end) override {
    CudaStream& stream = workspace_.stream_;
    const ScopedContext scope = workspace_.cuda_.context.scope();
    stream.wait_for(PooledEvent::event_of(*before_));
    given_->enqueue(stream, work);
    end.set(workspace_.cuda_.events.of(reinterpret_cast<std::uint64_t>(stream.get())));
  }
  bool input_is_there() override { return given_->input_is_there(); }
  void begin() noexcept override { given_->begin(); }
  bool is_done() override { return given_->is_done(); }
  void end() noexcept override { given_->end(); }

 private:
  CudaWorkspace& workspace_;
  const std::shared_ptr<const RecordedEvent> before_;
  const std::unique_ptr<Orders::Given> given_;
};

std::unique_ptr<EnqueuedWork> CudaWorkspace::give(Stream& before) {
  const ScopedContext scope = cuda_.context.scope();
  auto event = before.event();
  if (event == nullptr) return nullptr;
  std::unique_ptr<Orders::Given> given = cuda_.orders.give();
  if (given == nullptr) return nullptr;
  return std::make_unique<Work>(*this, std::move(event), std::move(given));
}

void CudaWorkspace::keep_all() noexcept {
  own_.keep_for_ever();
  for (const OpenedBlock& one : parts_) cuda_.of_peers.keep_for_ever(one.key);
  arrays_.keep_all();
}

// The stream may hold work of other calls that waits until they are given up, too.
bool CudaWorkspace::abandon() noexcept {
  constexpr std::uint64_t kMomentNs = 500'000'000;
  keep_all();
  try {
    const std::uint64_t begin = now_ns();
    while (!ready()) {
      if (now_ns() - begin > kMomentNs) return false;
      std::this_thread::yield();
    }
  } catch (const DeviceError&) {
    return false;
  }
  return true;
}

}  // namespace gradred::device
