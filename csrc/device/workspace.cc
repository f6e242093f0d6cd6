#include "device/workspace.h"

#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/clock.h"

namespace gradred::device {

// What a ticket says.
struct CudaWorkspace::Described {
  IpcHandle handle;
  Uuid device;
  std::uint64_t bytes, seed;
};

CudaWorkspace::Pattern CudaWorkspace::pattern_of(std::uint64_t seed) {
  Pattern pattern{};
  for (std::uint64_t& word : pattern.words) word = seed = seed * 0x9e3779b97f4a7c15ULL + 1;
  return pattern;
}

CudaWorkspace::CudaWorkspace(CudaMemory& memory, std::size_t rank, std::size_t ranks,
                             std::size_t bytes)
    : memory_(memory),
      rank_(rank),
      least_(bytes),
      seed_(now_ns() + static_cast<std::uint64_t>(getpid())),
      own_(memory.driver(), bytes),
      exported_(own_.exported()),
      imported_(ranks),
      stream_(memory.driver()),
      inputs_(ranks) {
  HostAllocation pinned(memory, sizeof(Pattern));
  const Pattern pattern = pattern_of(seed_);
  std::memcpy(pinned.data(), &pattern, sizeof pattern);
  stream_.copy(own_.get(), reinterpret_cast<Address>(pinned.data()), sizeof pattern);
  stream_.synchronize();
}

// Nothing is under way: an operation that was cut off has called abandon().
CudaWorkspace::~CudaWorkspace() = default;

Workspace::Ticket CudaWorkspace::ticket() {
  const Described mine{exported_, memory_.uuid(), least_, seed_};
  Ticket ticket{};
  static_assert(sizeof mine <= sizeof ticket);
  std::memcpy(ticket.data(), &mine, sizeof mine);
  return ticket;
}

void CudaWorkspace::open(std::size_t rank, const Ticket& ticket) {
  const ScopedContext scope = memory_.scope();
  Described theirs{};
  std::memcpy(&theirs, ticket.data(), sizeof theirs);
  imported_[rank] = ImportedAllocation(memory_.driver(), theirs.handle);
  HostAllocation pinned(memory_, sizeof(Pattern));
  stream_.copy(reinterpret_cast<Address>(pinned.data()), part(rank), sizeof(Pattern));
  stream_.synchronize();
  const Pattern wanted = pattern_of(theirs.seed);
  if (std::memcmp(pinned.data(), &wanted, sizeof wanted) != 0) {
    throw DeviceError("the memory that rank " + std::to_string(rank) +
                      " exports by CUDA IPC has other content here");
  }
  least_ = std::min<std::size_t>(least_, theirs.bytes);
  one_device_ &= memory_.uuid() == theirs.device;
}

bool CudaWorkspace::reduces(Op op, DType dtype, std::string& why) {
  if (!Kernels::serves(op, dtype)) {
    why =
        "there is no kernel for " + std::string(name_of(op)) + " of " + std::string(name_of(dtype));
    return false;
  }
  try {
    const ScopedContext scope = memory_.scope();
    memory_.kernels().prepare(dtype);
  } catch (const DeviceError& error) {
    why = error.what();
    return false;
  }
  return true;
}

void CudaWorkspace::put(std::size_t place, const void* source, std::size_t bytes) {
  const ScopedContext scope = memory_.scope();
  stream_.copy(own_.get() + place, reinterpret_cast<Address>(source), bytes);
}

void CudaWorkspace::put_scaled(std::size_t place, const void* source, DType dtype,
                               std::size_t count, double factor) {
  const ScopedContext scope = memory_.scope();
  const void* const inputs[] = {source};
  KernelCall call{.dtype = dtype, .inputs = inputs, .count = count};
  call.target = reinterpret_cast<void*>(own_.get() + place);
  call.scale = KernelCall::Scale{factor, false};
  memory_.kernels().launch(stream_.get(), call);
}

void CudaWorkspace::get(void* target, std::size_t rank, std::size_t place, std::size_t bytes) {
  const ScopedContext scope = memory_.scope();
  stream_.copy(reinterpret_cast<Address>(target), part(rank) + place, bytes);
}

void CudaWorkspace::reduce(Op op, DType dtype, std::size_t place, std::size_t count) {
  const ScopedContext scope = memory_.scope();
  for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
    inputs_[rank] = reinterpret_cast<const void*>(part(rank) + place);
  }
  KernelCall call{.op = op, .dtype = dtype, .inputs = inputs_, .count = count};
  call.target = reinterpret_cast<void*>(own_.get() + place);
  if (op == Op::kPremul) call.op = Op::kSum;
  if (op == Op::kAvg) {
    call.op = Op::kSum;
    call.scale = KernelCall::Scale{static_cast<double>(inputs_.size()), true};
  }
  memory_.kernels().launch(stream_.get(), call);
}

bool CudaWorkspace::ready() {
  const ScopedContext scope = memory_.scope();
  return stream_.ready();
}

bool CudaWorkspace::abandon() noexcept {
  own_.keep_for_ever();
  for (ImportedAllocation& one : imported_) one.keep_for_ever();
  try {
    while (!ready()) std::this_thread::yield();
  } catch (const DeviceError&) {
    return false;
  }
  return true;
}

}  // namespace gradred::device
