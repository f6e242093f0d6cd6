// Owners of what the CUDA driver creates: streams, events, memory, and memory and events of other
// processes. Owners can be moved, not copied. Each object is destroyed in the context in which it
// was created.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "device/driver/driver.h"

namespace gradred::device {

// Makes a context current in this thread while the object lives; nullptr: the context that is
// current already. The driver treats calls in this scope as unrelated to a stream capture.
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
  // While the program captures a stream in any thread, the driver forbids some calls in all threads
  // that have not declared that their calls are unrelated to the capture.
  void exchange_mode() {
    const auto exchange = driver_.call.ThreadExchangeStreamCaptureMode;
    if (exchange != nullptr) exchange(&mode_);
  }

  const Driver& driver_;
  int mode_ = 2;  // relaxed; while this object lives, the thread's previous mode
  bool pushed_ = false;
};

// The primary context of a device. It reaches memory of pools and mapped chunks, which belong to no
// context. It must be active already: gradred makes no contexts.
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

// Owns one handle of the driver, which the function `give_back` of the table destroys.
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
  // Never destroys the handle, because something may still use it.
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

// All of the following are created in the current context and throw if there is none.

// Whether processes on the current context's device compute at the same time, by NVIDIA's MPS; else
// they take turns.
bool is_served_by_mps(const Driver& driver);

// Streams of another priority than the program's do not share a hardware queue with them. In a
// shared queue, work that waits delays everything behind it.
enum class Urgency : bool { kUsual, kFirst };

// A stream that does not synchronise with the default stream.
class CudaStream : public Owned<StreamHandle, &Functions::StreamDestroy> {
 public:
  explicit CudaStream(const Driver& driver, Urgency urgency = Urgency::kUsual);
  // Copies are executed in the order of the calls. Target and source are device memory or pinned.
  void copy(Address target, Address source, std::size_t bytes);
  // The same if one of the two is pinned host memory; avoids delays by other processes on the
  // device.
  void exchange(Address target, Address source, std::size_t bytes);
  void wait_for(EventHandle event);
  bool ready() const;  // never blocks
  void synchronize() const;

 private:
  bool in_rows_;  // short copies are split into rows
};

enum class Sharing : bool { kThisProcess, kProcesses };

// A position in a stream.
class CudaEvent : public Owned<EventHandle, &Functions::EventDestroy> {
 public:
  explicit CudaEvent(const Driver& driver, Sharing sharing = Sharing::kThisProcess);
  // Opens an event of another process.
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
  // Exports the whole allocation.
  IpcHandle exported() const;
};

// Pinned host memory, to and from which the device copies asynchronously.
class PinnedAllocation : public Owned<void*, &Functions::MemFreeHost> {
 public:
  PinnedAllocation() = default;
  PinnedAllocation(const Driver& driver, std::size_t bytes);
};

// Code for a device.
class CudaModule : public Owned<ModuleHandle, &Functions::ModuleUnload> {
 public:
  CudaModule() = default;
  CudaModule(const Driver& driver, const std::string& image);  // `image`: a cubin or PTX
  FunctionHandle function(const std::string& name) const;
};

bool is_cubin(const std::string& code);  // whether code is a cubin; else it is PTX

// Links parts, each a cubin or PTX, to code for the current context's device, by the driver. Throws
// DriverError with the linker's log.
std::string linked(const Driver& driver, const std::vector<std::string>& parts);

// A DeviceAllocation of another process.
class ImportedAllocation : public Owned<Address, &Functions::IpcCloseMemHandle> {
 public:
  ImportedAllocation() = default;
  ImportedAllocation(const Driver& driver, const IpcHandle& handle);
};

}  // namespace gradred::device
