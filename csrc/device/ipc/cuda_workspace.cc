#include "device/ipc/cuda_workspace.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "base/tell_once.h"

namespace gradred::device {

// Contents of tickets.
struct CudaWorkspace::Block {
  PeersMemory::Key key;
  ExportedBlock exported;
};
struct CudaWorkspace::Described {
  Block block;
  Uuid device;
  std::uint64_t offset, bytes, seed;
};
struct CudaWorkspace::DescribedArray {
  Block block;
  Sample sample;  // bytes at the array's place
};

namespace {

template <class Described>
Workspace::Ticket as_ticket(const Described& described) {
  Workspace::Ticket ticket{};
  static_assert(sizeof described <= sizeof ticket && std::is_trivially_copyable_v<IpcHandle>);
  std::memcpy(ticket.data(), &described, sizeof described);
  return ticket;
}

template <class Described>
Described as_described(const Workspace::Ticket& ticket) {
  Described described;
  std::memcpy(static_cast<void*>(&described), ticket.data(), sizeof described);
  return described;
}

[[noreturn]] void refuse_content(std::size_t rank) {
  throw DeviceError("the memory that rank " + std::to_string(rank) +
                    " exports by CUDA IPC has other content here");
}

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
      least_(bytes),
      seed_(now_ns() + static_cast<std::uint64_t>(getpid())),
      own_(parts.exported, bytes),
      parts_(ranks),
      offsets_(ranks),
      arrays_(ranks),
      stream_(parts.context.driver()),
      by_turns_(!is_served_by_mps(parts.context.driver())) {
  const Pattern pattern = pattern_of(seed_);
  stream_.copy(address_of(own_.get()), address_of(&pattern), sizeof pattern);
  stream_.synchronize();
}

// No work is in flight: if an operation was cut off, abandon() was called.
CudaWorkspace::~CudaWorkspace() {
  PeersMemory& all = cuda_.of_peers;
  for (const Opened& one : parts_) all.let_go(one.key);
  for (const auto& opened : arrays_) {
    for (const auto& [number, one] : opened) all.let_go(one.key);
  }
}

bool CudaWorkspace::attempt(const std::function<void()>& open) {
  return cuda_.gate.while_none_is_open([&] {
    cuda_.of_peers.close_ended();
    open();
  });
}

CudaWorkspace::Block CudaWorkspace::described(SharedPlace place) const {
  const PeersMemory::Key key(cuda_.context.id(), place.allocation());
  if (!place.is_programs()) return {key, cuda_.exported.block_of(place)};
  const std::optional<ExportedBlock> block = cuda_.programs.block_of(place.allocation());
  if (!block)
    throw DeviceError("an array on " + cuda_.context.name() + " was freed during the call");
  return {key, *block};
}

CudaWorkspace::Opened CudaWorkspace::opened(const Block& block) {
  return {block.key, cuda_.of_peers.open(block.key, block.exported)};
}

Workspace::Ticket CudaWorkspace::ticket() {
  const SharedPlace place = cuda_.exported.find(own_.get(), least_);
  return as_ticket(
      Described{described(place), cuda_.context.uuid(), place.offset(), least_, seed_});
}

void CudaWorkspace::open(std::size_t rank, const Ticket& ticket) {
  const ScopedContext scope = cuda_.context.scope();
  const auto theirs = as_described<Described>(ticket);
  // It may be open from an earlier attempt, in which another rank failed.
  if (parts_[rank].begin == 0) parts_[rank] = opened(theirs.block);
  offsets_[rank] = theirs.offset;
  Pattern found{};
  stream_.copy(address_of(&found), part_of(rank), sizeof found);
  stream_.synchronize();
  const Pattern wanted = pattern_of(theirs.seed);
  if (std::memcmp(&found, &wanted, sizeof wanted) != 0) refuse_content(rank);
  least_ = std::min<std::size_t>(least_, theirs.bytes);
  one_device_ &= cuda_.context.uuid() == theirs.device;
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

// ---- arrays where they lie ----------------------------------------------------------------------

Workspace::Places CudaWorkspace::find(Array input, Array result) {
  const auto own = [this](Array array) {
    return array.bytes > 0 ? cuda_.exported.find(array.at, array.bytes) : SharedPlace();
  };
  Places found{own(input), own(result)};
  if (!exports_programs()) return found;
  const Places programs =
      cuda_.programs.find(found.input ? Array() : input, found.result ? Array() : result);
  if (programs.input) found.input = programs.input;
  if (programs.result) found.result = programs.result;
  return found;
}

CudaWorkspace::Sample CudaWorkspace::sample_of(Address array) {
  Sample sample;
  stream_.copy(address_of(sample.data()), array, sample.size());
  stream_.synchronize();
  return sample;
}

Workspace::Ticket CudaWorkspace::ticket_of(SharedPlace place) {
  const ScopedContext scope = cuda_.context.scope();
  const Block block = described(place);
  if (place.is_programs()) exported_.insert(place.allocation());
  return as_ticket(DescribedArray{block, sample_of(block.exported.begin + place.offset())});
}

// Checks that the peer's bytes are found at the array's place. Drivers export the pages that
// contain an allocation, and some may return the beginning of the pages instead of that of the
// allocation.
void CudaWorkspace::open_array(std::size_t rank, SharedPlace place, const Ticket& ticket) {
  if (arrays_[rank].contains(place.allocation())) return;
  const ScopedContext scope = cuda_.context.scope();
  const auto theirs = as_described<DescribedArray>(ticket);
  const Opened made = opened(theirs.block);
  arrays_[rank].emplace(place.allocation(), made);
  if (sample_of(made.begin + place.offset()) != theirs.sample) refuse_content(rank);
}

std::byte* CudaWorkspace::array(std::size_t rank, SharedPlace place) {
  const Address begin = arrays_[rank].at(place.allocation()).begin;
  return reinterpret_cast<std::byte*>(begin + place.offset());
}

bool CudaWorkspace::has_ended() {
  const std::uint64_t ended = cuda_.programs.ended();
  if (ended == ended_seen_) return false;
  const auto gone = [this](std::uint64_t number) { return !cuda_.programs.has(number); };
  if (std::ranges::any_of(exported_, gone)) return true;
  ended_seen_ = ended;
  return false;
}

std::vector<std::uint64_t> CudaWorkspace::take_ended(std::size_t most) {
  std::vector<std::uint64_t> taken;
  for (const std::uint64_t number : exported_) {
    if (taken.size() < most && !cuda_.programs.has(number)) taken.push_back(number);
  }
  for (const std::uint64_t number : taken) {
    exported_.erase(number);
    known_.erase(number);
  }
  return taken;
}

void CudaWorkspace::close_array(std::size_t rank, std::uint64_t allocation) {
  const auto found = arrays_[rank].find(allocation);
  if (found == arrays_[rank].end()) return;
  cuda_.of_peers.end(found->second.key);
  arrays_[rank].erase(found);
}

void CudaWorkspace::let_go_of_programs() noexcept {
  for (auto& opened : arrays_) {
    const auto first = opened.lower_bound(SharedPlace::kFirstOfPrograms);
    for (auto one = first; one != opened.end(); ++one) cuda_.of_peers.let_go(one->second.key);
    opened.erase(first, opened.end());
  }
  exported_.clear();
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

class CudaWorkspace::Work final : public GivenWork {
 public:
  Work(CudaWorkspace& workspace, std::shared_ptr<const DeviceMoment> before,
       std::unique_ptr<Orders::Given> given)
      : workspace_(workspace), before_(std::move(before)), given_(std::move(given)) {}
  void enqueue(const std::function<void()>& work, GivenEnd& end) override {
    CudaStream& stream = workspace_.stream_;
    const ScopedContext scope = workspace_.cuda_.context.scope();
    stream.wait_for(CudaMoment::event_of(*before_));
    given_->enqueue(stream, work);
    end.set(workspace_.cuda_.moments.of(reinterpret_cast<std::uint64_t>(stream.get())));
  }
  bool input_is_there() override { return given_->input_is_there(); }
  void begin() noexcept override { given_->begin(); }
  bool is_done() override { return given_->is_done(); }
  void end() noexcept override { given_->end(); }

 private:
  CudaWorkspace& workspace_;
  const std::shared_ptr<const DeviceMoment> before_;
  const std::unique_ptr<Orders::Given> given_;
};

std::unique_ptr<GivenWork> CudaWorkspace::give(Stream& before) {
  const ScopedContext scope = cuda_.context.scope();
  auto moment = before.moment();
  if (moment == nullptr) return nullptr;
  std::unique_ptr<Orders::Given> given = cuda_.orders.give();
  if (given == nullptr) return nullptr;
  return std::make_unique<Work>(*this, std::move(moment), std::move(given));
}

void CudaWorkspace::keep_all() noexcept {
  own_.keep_for_ever();
  PeersMemory& all = cuda_.of_peers;
  for (const Opened& one : parts_) all.keep_for_ever(one.key);
  for (const auto& opened : arrays_) {
    for (const auto& [number, one] : opened) all.keep_for_ever(one.key);
  }
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
