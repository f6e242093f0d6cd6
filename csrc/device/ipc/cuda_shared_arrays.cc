#include "device/ipc/cuda_shared_arrays.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/errors.h"
#include "device/ipc/programs_memory.h"

namespace gradred::device {

NumberedBlock block_of(const CudaParts& cuda, SharedPlace place) {
  const PeersMemory::Key key(cuda.context.id(), place.allocation());
  if (!place.is_programs()) return {key, cuda.exported.block_of(place)};
  const std::optional<ExportedBlock> block = cuda.programs.block_of(place.allocation());
  if (!block)
    throw DeviceError("an array on " + cuda.context.name() + " was freed during the call");
  return {key, *block};
}

OpenedBlock open(const CudaParts& cuda, const NumberedBlock& block) {
  return {block.key, cuda.of_peers.open(block.key, block.exported)};
}

void refuse_content(std::size_t rank) {
  throw DeviceError("the memory that rank " + std::to_string(rank) +
                    " exports by CUDA IPC has other content here");
}

struct CudaSharedArrays::Content {
  NumberedBlock block;
  Sample sample;  // bytes at the array's place
};

CudaSharedArrays::~CudaSharedArrays() {
  for (const auto& opened : opened_) {
    for (const auto& [number, one] : opened) cuda_.of_peers.let_go(one.key);
  }
}

void CudaSharedArrays::keep_all() noexcept {
  for (const auto& opened : opened_) {
    for (const auto& [number, one] : opened) cuda_.of_peers.keep_for_ever(one.key);
  }
}

SharedArrays::Places CudaSharedArrays::find(Array input, Array result) {
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

CudaSharedArrays::Sample CudaSharedArrays::sample_of(Address array) {
  Sample sample;
  stream_.copy(address_of(sample.data()), array, sample.size());
  stream_.synchronize();
  return sample;
}

Ticket CudaSharedArrays::ticket_of(SharedPlace place) {
  const ScopedContext scope = cuda_.context.scope();
  const NumberedBlock block = block_of(cuda_, place);
  if (place.is_programs()) exported_.insert(place.allocation());
  return as_ticket(Content{block, sample_of(block.exported.begin + place.offset())});
}

// Checks that the peer's bytes are found at the array's place. Drivers export the pages that
// contain an allocation, and some may return the beginning of the pages instead of that of the
// allocation.
void CudaSharedArrays::open(std::size_t rank, SharedPlace place, const Ticket& ticket) {
  if (opened_[rank].contains(place.allocation())) return;
  const ScopedContext scope = cuda_.context.scope();
  const auto theirs = content_of<Content>(ticket);
  const OpenedBlock made = gradred::device::open(cuda_, theirs.block);
  opened_[rank].emplace(place.allocation(), made);
  if (sample_of(made.begin + place.offset()) != theirs.sample) refuse_content(rank);
}

std::byte* CudaSharedArrays::address(std::size_t rank, SharedPlace place) {
  const Address begin = opened_[rank].at(place.allocation()).begin;
  return reinterpret_cast<std::byte*>(begin + place.offset());
}

bool CudaSharedArrays::has_ended() {
  const std::uint64_t ended = cuda_.programs.ended();
  if (ended == ended_seen_) return false;
  const auto gone = [this](std::uint64_t number) { return !cuda_.programs.has(number); };
  if (std::ranges::any_of(exported_, gone)) return true;
  ended_seen_ = ended;
  return false;
}

std::vector<std::uint64_t> CudaSharedArrays::take_ended(std::size_t most) {
  std::vector<std::uint64_t> taken;
  for (const std::uint64_t number : exported_) {
    if (taken.size() < most && !cuda_.programs.has(number)) taken.push_back(number);
  }
  for (const std::uint64_t number : taken) {
    exported_.erase(number);
    forget(number);
  }
  return taken;
}

void CudaSharedArrays::close(std::size_t rank, std::uint64_t allocation) {
  const auto found = opened_[rank].find(allocation);
  if (found == opened_[rank].end()) return;
  cuda_.of_peers.end(found->second.key);
  opened_[rank].erase(found);
}

void CudaSharedArrays::let_go_of_programs() noexcept {
  for (auto& opened : opened_) {
    const auto first = opened.lower_bound(SharedPlace::kFirstOfPrograms);
    for (auto one = first; one != opened.end(); ++one) cuda_.of_peers.let_go(one->second.key);
    opened.erase(first, opened.end());
  }
  exported_.clear();
}

}  // namespace gradred::device
