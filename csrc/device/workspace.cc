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
  std::uint64_t offset, bytes, seed;
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
      own_(memory.exported(), bytes),
      imported_(ranks),
      offsets_(ranks),
      imported_arrays_(ranks),
      stream_(memory.driver()),
      by_turns_(!is_served_by_mps(memory.driver())) {
  const Pattern pattern = pattern_of(seed_);
  stream_.copy(address_of(own_.get()), address_of(&pattern), sizeof pattern);
  stream_.synchronize();
}

// Nothing is under way: an operation that was cut off has called abandon().
CudaWorkspace::~CudaWorkspace() {
  for (ImportedAllocation& one : imported_) memory_.free_later(std::move(one));
  for (auto& imported : imported_arrays_) {
    for (auto& [number, one] : imported) memory_.free_later(std::move(one));
  }
}

bool CudaWorkspace::attempt(const std::function<void()>& open) {
  return memory_.orders().while_none_is_open(open);
}

Workspace::Ticket CudaWorkspace::ticket() {
  const SharedPlace place = memory_.exported().find(own_.get(), least_);
  const Described mine{memory_.exported().handle_of(place), memory_.uuid(), place.offset(), least_,
                       seed_};
  Ticket ticket{};
  static_assert(sizeof mine <= sizeof ticket);
  std::memcpy(ticket.data(), &mine, sizeof mine);
  return ticket;
}

void CudaWorkspace::open(std::size_t rank, const Ticket& ticket) {
  const ScopedContext scope = memory_.scope();
  Described theirs{};
  std::memcpy(&theirs, ticket.data(), sizeof theirs);
  if (imported_[rank].get() == 0) {  // else tried when a peer could not
    imported_[rank] = ImportedAllocation(memory_.driver(), theirs.handle);
  }
  offsets_[rank] = theirs.offset;
  Pattern found{};
  stream_.copy(address_of(&found), part_of(rank), sizeof found);
  stream_.synchronize();
  const Pattern wanted = pattern_of(theirs.seed);
  if (std::memcmp(&found, &wanted, sizeof wanted) != 0) {
    throw DeviceError("the memory that rank " + std::to_string(rank) +
                      " exports by CUDA IPC has other content here");
  }
  least_ = std::min<std::size_t>(least_, theirs.bytes);
  one_device_ &= memory_.uuid() == theirs.device;
}

bool CudaWorkspace::reduces(Op op, DType dtype, std::string& why) {
  why = Kernels::why_not(op, dtype);
  if (!why.empty()) return false;
  try {
    if (memory_.prepare_kernels(op, dtype)) return true;
    why = "their kernels are loaded when no stream waits for peers any longer";
  } catch (const DeviceError& error) {
    why = error.what();
  }
  return false;
}

// ---- arrays where they lie ----------------------------------------------------------------------

SharedPlace CudaWorkspace::find(const void* array, std::size_t bytes) {
  return memory_.exported().find(array, bytes);
}

Workspace::Ticket CudaWorkspace::ticket_of(SharedPlace place) {
  const IpcHandle handle = memory_.exported().handle_of(place);
  Ticket ticket{};
  static_assert(sizeof handle <= sizeof ticket);
  std::memcpy(ticket.data(), &handle, sizeof handle);
  return ticket;
}

void CudaWorkspace::open_array(std::size_t rank, SharedPlace place, const Ticket& ticket) {
  auto& imported = imported_arrays_[rank];
  if (imported.contains(place.allocation())) return;
  const ScopedContext scope = memory_.scope();
  IpcHandle handle;
  std::memcpy(&handle, ticket.data(), sizeof handle);
  imported.emplace(place.allocation(), ImportedAllocation(memory_.driver(), handle));
}

std::byte* CudaWorkspace::array(std::size_t rank, SharedPlace place) {
  const Address begin = imported_arrays_[rank].at(place.allocation()).get();
  return reinterpret_cast<std::byte*>(begin + place.offset());
}

// ---- work ---------------------------------------------------------------------------------------

std::byte* CudaWorkspace::part(std::size_t rank, std::size_t place) {
  return reinterpret_cast<std::byte*>(part_of(rank) + place);
}

void CudaWorkspace::copy(void* target, const void* source, std::size_t bytes) {
  const ScopedContext scope = memory_.scope();
  stream_.copy(address_of(target), address_of(source), bytes);
}

void CudaWorkspace::copy_scaled(void* target, const void* source, DType dtype, std::size_t count,
                                double factor) {
  const ScopedContext scope = memory_.scope();
  KernelCall call{.dtype = dtype, .targets = {&target, 1}, .inputs = {&source, 1}, .count = count};
  call.scale = KernelCall::Scale{factor, false};
  memory_.kernels().launch(stream_.get(), call);
}

void CudaWorkspace::reduce(Op op, DType dtype, std::span<void* const> targets,
                           std::span<const void* const> inputs, std::size_t count) {
  const ScopedContext scope = memory_.scope();
  KernelCall call{.op = op, .dtype = dtype, .targets = targets, .inputs = inputs, .count = count};
  if (op == Op::kPremul) call.op = Op::kSum;
  if (op == Op::kAvg) {
    call.op = Op::kSum;
    call.scale = KernelCall::Scale{static_cast<double>(inputs.size()), true};
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
  for (auto& imported : imported_arrays_) {
    for (auto& [number, one] : imported) one.keep_for_ever();
  }
  try {
    while (!ready()) std::this_thread::yield();
  } catch (const DeviceError&) {
    return false;
  }
  return true;
}

}  // namespace gradred::device
