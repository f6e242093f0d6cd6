// The memory of CUDA devices, an implementation of csrc/memory. Its streams copy and do not reduce.
// The kernels are used for operations of ranks in the memory of their devices
// (ipc/cuda_workspace.h).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "device/driver/cuda_context.h"
#include "device/driver/driver_gate.h"
#include "device/driver/options.h"
#include "device/driver/pointer_cache.h"
#include "device/ipc/cuda_parts.h"
#include "device/ipc/exported.h"
#include "device/ipc/peers_memory.h"
#include "device/ipc/programs_memory.h"
#include "device/kernels/loaded_kernels.h"
#include "device/streams/cuda_order.h"
#include "device/streams/cuda_streams.h"
#include "device/streams/event_pool.h"
#include "device/streams/pinned_memory.h"
#include "memory/collectives.h"
#include "memory/memory.h"

namespace gradred::device {

// The memory that one context reaches, with the resources that are made in the context and reused.
class CudaMemory final : public DeviceMemory {
 public:
  // Returns the object for the context of an address for which ask() has found device memory. There
  // is one for each context; it lives as long as the process. The options of the first call for a
  // context are used. Throws DriverError if no context reaches the memory.
  static CudaMemory& of(const Driver& driver, const PointerInfo& found, const Options& options);

  std::string name() const override { return context_.name(); }
  int ordinal() const override { return context_.ordinal(); }
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* address) noexcept override;
  bool reduces() const override { return false; }
  std::byte* allocate_host(std::size_t bytes) override { return host_.allocate(bytes); }
  void release_host(std::byte* address) noexcept override { host_.release(address); }
  std::unique_ptr<DeviceStream> open_stream() override { return streams_.open(); }
  std::unique_ptr<Workspace> make_workspace(std::size_t rank, std::size_t ranks, std::size_t bytes,
                                            std::string& why) override;

  Identity identity() const override { return std::bit_cast<Identity>(context_.uuid()); }
  CollectiveLibrary* collectives(std::string_view plan, std::string& why) override;
  std::shared_ptr<StreamOrder> open_direct_order(std::uint64_t stream) override;
  std::shared_ptr<StreamOrder> open_order(std::uint64_t stream,
                                          std::span<const std::size_t> host_bytes,
                                          std::string& why) override {
    return orders_.open(stream, host_bytes, why);
  }

  // Throws UsageError if the stream is being captured.
  std::shared_ptr<const RecordedEvent> event_of(std::uint64_t stream) override {
    return events_.of(stream);
  }
  bool prepares_later(const void* input, std::size_t bytes, const Reduction* reduction) override;
  void precede(const RecordedEvent& event, std::uint64_t stream) override {
    events_.precede(event, stream);
  }

  const CudaContext& context() const { return context_; }
  DriverGate& gate() { return gate_; }
  PinnedMemory& host() { return host_; }
  Orders& orders() { return orders_; }
  ExportedMemory& exported() { return exported_; }
  ProgramsMemory& programs() { return programs_; }

 private:
  CudaMemory(const Driver& driver, ContextHandle context, Ordinal device, const Options& options);

  const CudaContext context_;
  const Options options_;
  DriverGate gate_;
  std::mutex mutex_;
  std::map<std::byte*, DeviceAllocation> allocations_;
  LoadedKernels kernels_;
  PinnedMemory host_{context_, gate_};
  EventPool events_{context_};
  CudaStreams streams_{context_, host_, kernels_, events_};
  Orders orders_{*this, context_, gate_, host_, streams_};
  ExportedMemory exported_{context_};
  ProgramsMemory programs_{context_, gate_};
  PeersMemory of_peers_{context_, host_};
  const CudaParts parts_{context_, gate_,     kernels_,  host_,    events_,
                         orders_,  exported_, programs_, of_peers_};
  // The libraries that have been requested, by plan; protected by mutex_.
  std::map<std::string, std::unique_ptr<CollectiveLibrary>, std::less<>> collectives_;
};

}  // namespace gradred::device
