// Arrays that the devices of other processes reach by CUDA IPC where they lie, if the allocations
// that hold them can be exported.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <type_traits>
#include <vector>

#include "device/ipc/cuda_parts.h"
#include "device/ipc/peers_memory.h"
#include "memory/shared_arrays.h"

namespace gradred::device {

// An exported allocation of this process, as a ticket has it.
struct NumberedBlock {
  PeersMemory::Key key;
  ExportedBlock exported;
};
NumberedBlock block_of(const CudaParts& cuda, SharedPlace place);

struct OpenedBlock {
  PeersMemory::Key key{};
  Address begin = 0;  // 0: not opened
};
OpenedBlock open(const CudaParts& cuda, const NumberedBlock& block);

template <class Content>
Ticket as_ticket(const Content& content) {
  Ticket ticket{};
  static_assert(sizeof content <= sizeof ticket && std::is_trivially_copyable_v<IpcHandle>);
  std::memcpy(ticket.data(), &content, sizeof content);
  return ticket;
}

template <class Content>
Content content_of(const Ticket& ticket) {
  Content content;
  std::memcpy(static_cast<void*>(&content), ticket.data(), sizeof content);
  return content;
}

[[noreturn]] void refuse_content(std::size_t rank);

class CudaSharedArrays final : public SharedArrays {
 public:
  // Samples are copied on `stream`.
  CudaSharedArrays(const CudaParts& cuda, std::size_t ranks, CudaStream& stream)
      : cuda_(cuda), opened_(ranks), stream_(stream) {}
  ~CudaSharedArrays() override;
  CudaSharedArrays(const CudaSharedArrays&) = delete;
  CudaSharedArrays& operator=(const CudaSharedArrays&) = delete;

  Places find(Array input, Array result) override;
  Ticket ticket_of(SharedPlace place) override;
  void open(std::size_t rank, SharedPlace place, const Ticket& ticket) override;
  std::byte* address(std::size_t rank, SharedPlace place) override;
  bool has_ended() override;
  std::vector<std::uint64_t> take_ended(std::size_t most) override;
  void close(std::size_t rank, std::uint64_t allocation) override;
  void let_go_of_programs() noexcept override;
  void keep_all() noexcept;  // see Workspace::keep_all()

 private:
  using Sample = std::array<std::byte, 32>;  // the first bytes of an array of at least this length
  struct Content;

  Sample sample_of(Address array);

  const CudaParts& cuda_;
  // Per rank, the opened allocations of peers' arrays by the peer's number.
  std::vector<std::map<std::uint64_t, OpenedBlock>> opened_;
  std::set<std::uint64_t> exported_;  // allocations of the program that some peers have opened
  // Value of ProgramsMemory::ended() up to which exported_ has been checked.
  std::uint64_t ended_seen_ = 0;
  CudaStream& stream_;
};

}  // namespace gradred::device
