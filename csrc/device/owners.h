// Owners of what the CUDA driver gives: streams, events, memory, memory and events of other
// processes. Each moves, none is copied, and each is given back in the context that it was made in.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "device/driver.h"

namespace gradred::device {

// Makes a context current in this thread while it lives, whose calls are none of a stream's that
// is being captured. Null: the context that is current already.
class ScopedContext {
 public:
  ScopedContext(const Driver& driver, ContextHandle context) : driver_(driver) {
    if (context != nullptr && context != driver.current()) {
      driver.check(driver.call.CtxPushCurrent(context), "cuCtxPushCurrent");
      pushed_ = true;
    }
    exchange_mode();
  }
  ~ScopedContext() {
    exchange_mode();
    ContextHandle context = nullptr;
    if (pushed_) driver_.complain(driver_.call.CtxPopCurrent(&context), "cuCtxPopCurrent");
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  // While the program captures a stream, in whichever thread, the driver forbids some calls in all
  // threads that do not say that theirs have nothing to do with it.
  void exchange_mode() {
    const auto exchange = driver_.call.ThreadExchangeStreamCaptureMode;
    if (exchange != nullptr) exchange(&mode_);
  }

  const Driver& driver_;
  int mode_ = 2;  // relaxed; while this lives, what the thread had before
  bool pushed_ = false;
};

// The context in which a device's memory can be reached without one of its own: memory of pools and
// mapped chunks belongs to none. Only one that is active already: gradred makes none.
class PrimaryContext {
 public:
  PrimaryContext(const Driver& driver, Ordinal device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  ContextHandle get() const { return context_; }

 private:
  const Driver& driver_;
  Ordinal device_;
  ContextHandle context_ = nullptr;
};

// One thing of the driver's, which `give_back`, a function of the table, takes back.
template <class Handle, auto give_back>
class Owned {
 public:
  Owned() = default;
  Owned(const Driver& driver, Handle handle)
      : driver_(&driver), context_(driver.current()), handle_(handle) {}
  ~Owned() { reset(); }
  Owned(Owned&& other) noexcept { swap(other); }
  Owned& operator=(Owned&& other) noexcept {
    swap(other);
    return *this;
  }

  Handle get() const { return handle_; }
  const Driver& driver() const { return *driver_; }
  // Nobody gives it back: something may still use it.
  void keep_for_ever() noexcept { handle_ = Handle{}; }
  void reset() noexcept;

 private:
  void swap(Owned& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(context_, other.context_);
    std::swap(handle_, other.handle_);
  }

  const Driver* driver_ = nullptr;
  ContextHandle context_ = nullptr;
  Handle handle_{};
};

// All of the following are made in the current context, and throw where there is none.

// Whether processes compute at once on the current context's device, by NVIDIA's MPS: else they do
// so by turns.
bool is_served_by_mps(const Driver& driver);

// Streams of another urgency than the program's share no queue of the hardware with them, where
// whatever waits holds up all that comes behind.
enum class Urgency : bool { kUsual, kFirst };

// A queue of work that the default stream does not wait for, nor it for the default stream.
class CudaStream : public Owned<StreamHandle, &Functions::StreamDestroy> {
 public:
  explicit CudaStream(const Driver& driver, Urgency urgency = Urgency::kUsual);
  // The order is that of the calls; target and source are the device's or pinned.
  void copy(Address target, Address source, std::size_t bytes);
  // The same where one of them is pinned, for whoever else uses the device.
  void exchange(Address target, Address source, std::size_t bytes);
  void wait_for(EventHandle event);
  bool ready() const;  // never blocks
  void synchronize() const;

 private:
  bool in_rows_;  // short copies
};

enum class Sharing : bool { kThisProcess, kProcesses };

// A moment in a stream.
class CudaEvent : public Owned<EventHandle, &Functions::EventDestroy> {
 public:
  explicit CudaEvent(const Driver& driver, Sharing sharing = Sharing::kThisProcess);
  // Another process's.
  CudaEvent(const Driver& driver, const IpcHandle& handle);
  void record(StreamHandle stream);
  bool ready() const;
  void synchronize() const;
  IpcHandle exported() const;
};

class DeviceAllocation : public Owned<Address, &Functions::MemFree> {
 public:
  DeviceAllocation() = default;
  DeviceAllocation(const Driver& driver, std::size_t bytes);
  // Of the whole allocation.
  IpcHandle exported() const;
};

// Host memory at which the device copies without a stop.
class PinnedAllocation : public Owned<void*, &Functions::MemFreeHost> {
 public:
  PinnedAllocation() = default;
  PinnedAllocation(const Driver& driver, std::size_t bytes);
};

// Code for a device.
class CudaModule : public Owned<ModuleHandle, &Functions::ModuleUnload> {
 public:
  CudaModule() = default;
  CudaModule(const Driver& driver, const std::string& image);  // a cubin, or PTX
  FunctionHandle function(const std::string& name) const;
};

bool is_cubin(const std::string& code);  // or else PTX

// Parts, each a cubin or PTX, linked by the driver to code for the current context's device. Throws
// DriverError with what the linker says.
std::string linked(const Driver& driver, const std::vector<std::string>& parts);

// A DeviceAllocation of another process.
class ImportedAllocation : public Owned<Address, &Functions::IpcCloseMemHandle> {
 public:
  ImportedAllocation() = default;
  ImportedAllocation(const Driver& driver, const IpcHandle& handle);
};

}  // namespace gradred::device
