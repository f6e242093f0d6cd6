// The memory of CUDA devices, as csrc/memory has it. Its streams copy, and reduce nothing: kernels
// serve what ranks do in the memory of their devices (workspace.h).
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

#include "device/exported.h"
#include "device/kernels.h"
#include "device/options.h"
#include "device/order.h"
#include "device/owners.h"
#include "device/peers_memory.h"
#include "device/pointer_cache.h"
#include "device/programs_memory.h"
#include "memory/collectives.h"
#include "memory/memory.h"

namespace gradred::device {

// What a device's memory is reached by: a context, and what is made in it and used again.
class CudaMemory final : public DeviceMemory {
 public:
  // Of an address at which ask() has found memory of a device's. One for each context, and kept as
  // long as the process lives. Throws DriverError where no context reaches it.
  // The options of the first call for a context count.
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

  // Throws UsageError for a stream that is being captured.
  std::shared_ptr<const DeviceMoment> moment_of(std::uint64_t stream) override;

  const Driver& driver() const { return driver_; }
  // Whether a stream's work is only recorded, in a CUDA graph. In this context, as the next one.
  bool is_captured(std::uint64_t stream) const;
  // Throws UsageError for such a stream.
  void require_live(std::uint64_t stream) const;
  ScopedContext scope() const { return {driver_, context_}; }
  // For destructors: work() in this context. False: that has ended, and what was made in it.
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
  std::uint64_t id() const { return id_; }  // of no other one, of whichever process
  Orders& orders() { return orders_; }
  // What follows has the driver wait for the device where it has to, but not while that may be
  // waiting for peers (Orders::while_none_is_open). So, of allocate_host(), what is pinned; null:
  // not now, but by the time that somebody asks for as much again, if none is open in between.
  std::byte* pinned_host(std::size_t bytes);
  // Compiles and loads kernels, as Kernels. False: not now.
  bool prepare_kernels(Op op, DType dtype);
  bool copies_by_kernel();  // likewise, those that copy; nor where there are none
  void free_later(ImportedAllocation imported) noexcept;
  // Whether allocate_host() has given it, and it is not pinned.
  bool is_plain_host(const void* address);
  // Whether calls are in flight that give the device work as they are carried out.
  bool has_work_to_come() const { return working_streams_.load() > 0; }

 private:
  friend class Copies;
  friend class CudaMoment;
  struct Queue {
    CudaStream stream;
    std::vector<CudaEvent> marks{};  // for places in the order of its own work
  };

  CudaMemory(const Driver& driver, ContextHandle context, Ordinal device, const Options& options);
  std::unique_ptr<Queue> take_queue();
  CudaEvent take_moment();                   // in its context
  std::byte* spare_host(std::size_t bytes);  // null: none fits
  std::size_t most_spare_bytes(std::size_t next = 0) const;
  void catch_up();                         // with what is dropped, and wanted
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
  std::atomic<int> working_streams_{0};  // of calls in flight
  std::vector<CudaEvent> idle_moments_;
  // Host memory takes the driver a millisecond and more to pin.
  std::map<std::byte*, PinnedAllocation> pinned_;  // all that there is
  std::map<std::byte*, std::size_t> in_use_;       // by bytes
  std::multimap<std::size_t, std::byte*> spare_;
  std::size_t spare_bytes_ = 0;
  std::size_t longest_ = 0;  // of what has been pinned
  using Dropped = std::variant<PinnedAllocation, ImportedAllocation>;
  std::vector<Dropped> dropped_;     // freed by the next who allocates
  std::vector<std::size_t> wanted_;  // bytes that could not be pinned when somebody asked for them
  std::map<const std::byte*, std::size_t> plain_;  // what was given instead, by bytes
  std::atomic<std::size_t> plain_count_{0};
  Orders orders_{*this};
  ExportedMemory exported_{*this};
  ProgramsMemory programs_{*this};
  PeersMemory of_peers_{*this};
  const Options options_;
  // By plan, under mutex_: those that somebody has asked for.
  std::map<LibraryKind, std::unique_ptr<CollectiveLibrary>> collectives_;
};

// An event of the context that the program's stream is of. Another moment may have it as soon as
// nobody has this one: who has come after it need not look at it again.
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
