// The memory of CUDA devices, an implementation of csrc/memory. Its streams copy and do not reduce.
// The kernels are used for operations of ranks in the memory of their devices (workspace.h).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "device/cuda_order.h"
#include "device/exported.h"
#include "device/kernels.h"
#include "device/options.h"
#include "device/owners.h"
#include "device/peers_memory.h"
#include "device/pointer_cache.h"
#include "device/programs_memory.h"
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

  std::string name() const override { return name_; }
  std::string model() const override { return model_.empty() ? name_ : model_; }
  int ordinal() const override { return device_; }
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* address) noexcept override;
  bool reduces() const override { return false; }
  std::byte* allocate_host(std::size_t bytes) override;
  void release_host(std::byte* address) noexcept override;
  std::unique_ptr<DeviceStream> open_stream() override;
  std::unique_ptr<Workspace> make_workspace(std::size_t rank, std::size_t ranks, std::size_t bytes,
                                            std::string& why) override;

  Identity identity() const override { return std::bit_cast<Identity>(uuid_); }
  CollectiveLibrary* collectives(LibraryKind kind, std::string& why) override;
  std::shared_ptr<StreamOrder> open_direct_order(std::uint64_t stream) override;
  std::shared_ptr<StreamOrder> open_order(std::uint64_t stream,
                                          std::span<const std::size_t> host_bytes,
                                          std::string& why) override {
    return orders_.open(stream, host_bytes, why);
  }

  // Throws UsageError if the stream is being captured.
  std::shared_ptr<const DeviceMoment> moment_of(std::uint64_t stream) override;
  bool prepares_later(const void* input, std::size_t bytes, const Reduction* reduction) override;
  void precede(const DeviceMoment& moment, std::uint64_t stream) override;

  const Driver& driver() const { return driver_; }
  // Whether the stream's work is only recorded in a CUDA graph. This context must be current, as
  // for the next one.
  bool is_captured(std::uint64_t stream) const;
  // Throws UsageError if it is.
  void require_live(std::uint64_t stream) const;
  ScopedContext scope() const { return {driver_, context_}; }
  // For destructors: calls work() in this context. Returns false if the context has ended, and with
  // it everything that was made in it.
  template <class Work>
  bool if_alive(Work&& work) const noexcept {
    try {
      const ScopedContext scope = this->scope();
      work();
      return true;
    } catch (const DriverError& error) {
      driver_.complain_of_context(error.code());
      return false;
    }
  }
  const Uuid& uuid() const { return uuid_; }
  Kernels& kernels() { return kernels_; }
  ExportedMemory& exported() { return exported_; }
  ProgramsMemory& programs() { return programs_; }
  PeersMemory& of_peers() { return of_peers_; }
  std::uint64_t id() const { return id_; }  // unique among all objects of all processes
  Orders& orders() { return orders_; }
  // The driver may have to wait for the device in the following functions. They do that only while
  // the device cannot be waiting for peers (Orders::while_none_is_open). pinned_host(): pinned
  // memory of allocate_host(). Returns nullptr if pinning is impossible now; the memory is then
  // pinned at the beginning of the next request, if no order is open by then.
  std::byte* pinned_host(std::size_t bytes);
  // Compiles and loads kernels; see Kernels. Returns false if that is impossible now.
  bool prepare_kernels(Op op, DType dtype);
  bool copies_by_kernel();  // the same for the kernel that copies; false also if there is none
  void free_later(ImportedAllocation imported) noexcept;
  // Whether `address` is in memory of allocate_host() that is not pinned.
  bool is_plain_host(const void* address);
  // Whether calls are in flight that will give the device more work as they advance.
  bool has_work_to_come() const { return working_streams_.load() > 0; }

 private:
  friend class Copies;
  friend class CudaMoment;
  struct Queue {
    CudaStream stream;
    std::vector<CudaEvent> marks{};  // events for marks in this stream's own work
  };

  CudaMemory(const Driver& driver, ContextHandle context, Ordinal device, const Options& options);
  std::unique_ptr<Queue> take_queue();
  CudaEvent take_moment();                   // this context must be current
  std::byte* spare_host(std::size_t bytes);  // nullptr if none fits
  std::size_t most_spare_bytes(std::size_t next = 0) const;
  void catch_up();  // frees dropped_ and pins wanted_, if that is possible now
  std::byte* pin_host(std::size_t bytes);  // the driver may wait for the device
  void give_back(std::unique_ptr<Queue> queue, bool is_done) noexcept;

  const Driver& driver_;
  const ContextHandle context_;
  const Ordinal device_;
  const std::uint64_t id_;
  const std::string model_, name_;
  Uuid uuid_{};
  Kernels kernels_;
  std::mutex mutex_;
  std::map<std::byte*, DeviceAllocation> allocations_;
  std::vector<std::unique_ptr<Queue>> idle_;
  std::atomic<int> working_streams_{0};  // streams that calls in flight use
  std::vector<CudaEvent> idle_moments_;
  // Pinned host memory, cached because pinning takes the driver a millisecond and more.
  std::map<std::byte*, PinnedAllocation> pinned_;  // all pinned memory
  std::map<std::byte*, std::size_t> in_use_;       // bytes of what is in use
  std::multimap<std::size_t, std::byte*> spare_;
  std::size_t spare_bytes_ = 0;
  std::size_t longest_ = 0;  // the longest allocation that was pinned
  using Dropped = std::variant<PinnedAllocation, ImportedAllocation>;
  std::vector<Dropped> dropped_;     // freed by the next allocation
  std::vector<std::size_t> wanted_;  // sizes that could not be pinned when they were requested
  // Memory that was allocated instead of pinned memory, with its bytes.
  std::map<const std::byte*, std::size_t> plain_;
  std::atomic<std::size_t> plain_count_{0};
  Orders orders_{*this};
  ExportedMemory exported_{*this};
  ProgramsMemory programs_{*this};
  PeersMemory of_peers_{*this};
  const Options options_;
  // The libraries that have been requested, by plan; protected by mutex_.
  std::map<LibraryKind, std::unique_ptr<CollectiveLibrary>> collectives_;
};

// An event of the context to which the program's stream belongs. The event is reused as soon as
// this object is destroyed. By then, work that must follow it has been ordered behind it.
class CudaMoment final : public DeviceMoment {
 public:
  CudaMoment(CudaMemory& memory, CudaEvent event) : memory_(memory), event_(std::move(event)) {}
  ~CudaMoment() override;
  CudaMoment(const CudaMoment&) = delete;
  CudaMoment& operator=(const CudaMoment&) = delete;

  static EventHandle event_of(const DeviceMoment& moment) {
    return static_cast<const CudaMoment&>(moment).event_.get();
  }

 private:
  CudaMemory& memory_;
  CudaEvent event_;
};

}  // namespace gradred::device
