#include "device/driver/owners.h"

#include <array>
#include <cstring>
#include <string>

namespace gradred::device {
namespace {

constexpr unsigned kNonBlockingStream = 1;
constexpr unsigned kEventWithoutTime = 2, kInterprocessEvent = 4;
constexpr unsigned kPortableMemory = 1;  // pinned for all contexts
constexpr unsigned kLazyPeerAccess = 1;  // the only flag that cuIpcOpenMemHandle accepts

// Returns the handle that `make` stores through its argument.
template <class Handle, class Make>
Handle made(const Driver& driver, const std::string& what, Make&& make,
            const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Handle handle{};
  driver.check(make(&handle), what.c_str(), file, line);
  return handle;
}

std::string bytes_of(const char* function, std::size_t bytes) {
  return std::string(function) + " of " + std::to_string(bytes) + " bytes";
}

bool is_done(const Driver& driver, Result code, const char* what) {
  if (code == kNotReady) return false;
  driver.check(code, what);
  return true;
}

}  // namespace

// Older drivers do not know this attribute; false for them.
bool is_served_by_mps(const Driver& driver) {
  Ordinal device = 0;
  int served = 0;
  driver.check(driver.call.CtxGetDevice(&device), "cuCtxGetDevice");
  const Result code = driver.call.DeviceGetAttribute(&served, kIsServedByMps, device);
  return code == kSuccess && served != 0;
}

template <class Handle, auto give_back>
void Owned<Handle, give_back>::reset() noexcept {
  if (handle_ == Handle{}) return;
  try {
    const ScopedContext scope(*driver_, context_);
    driver_->complain((driver_->call.*give_back)(handle_), "giving back what the driver made");
  } catch (const DriverError& error) {  // the context has ended, and the object with it
    driver_->complain_of_context(error.code());
  }
  handle_ = Handle{};
}

template class Owned<StreamHandle, &Functions::StreamDestroy>;
template class Owned<EventHandle, &Functions::EventDestroy>;
template class Owned<Address, &Functions::MemFree>;
template class Owned<void*, &Functions::MemFreeHost>;
template class Owned<Address, &Functions::IpcCloseMemHandle>;
template class Owned<ModuleHandle, &Functions::ModuleUnload>;
template class Owned<LinkHandle, &Functions::LinkDestroy>;

PrimaryContext::PrimaryContext(const Driver& driver, Ordinal device)
    : driver_(driver), device_(device) {
  unsigned flags = 0;
  int active = 0;
  driver.check(driver.call.DevicePrimaryCtxGetState(device, &flags, &active),
               "cuDevicePrimaryCtxGetState");
  if (active == 0) driver.check(kInvalidContext, "the primary context of the array's device");
  driver.check(driver.call.DevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
}
PrimaryContext::~PrimaryContext() {
  driver_.complain(driver_.call.DevicePrimaryCtxRelease(device_), "cuDevicePrimaryCtxRelease");
}

CudaStream::CudaStream(const Driver& driver, Urgency urgency)
    : Owned(driver, made<StreamHandle>(
                        driver, "cuStreamCreate",
                        [&](StreamHandle* stream) {
                          int least = 0, greatest = 0;
                          if (urgency == Urgency::kUsual) {
                            return driver.call.StreamCreate(stream, kNonBlockingStream);
                          }
                          const Result code =
                              driver.call.CtxGetStreamPriorityRange(&least, &greatest);
                          return code != kSuccess ? code
                                                  : driver.call.StreamCreateWithPriority(
                                                        stream, kNonBlockingStream, greatest);
                        })),
      in_rows_(!is_served_by_mps(driver)) {}
void CudaStream::copy(Address target, Address source, std::size_t bytes) {
  if (bytes == 0) return;
  driver().check(driver().call.MemcpyAsync(target, source, bytes, get()), "cuMemcpyAsync");
}

// The driver performs shorter copies on the device's compute engine. Processes that share a device
// without MPS take turns on that, a seventh of a millisecond each on an H100. Copies of more than
// one row use the device's copy engines, which all processes use at the same time.
void CudaStream::exchange(Address target, Address source, std::size_t bytes) {
  constexpr std::size_t kLong = std::size_t{64} << 10, kRows = 2;
  const Functions& call = driver().call;
  if (in_rows_ && bytes >= kRows && bytes < kLong) {
    Rows rows;
    rows.width = rows.source.pitch = rows.target.pitch = bytes / kRows;
    rows.height = kRows;
    rows.source.address = source;
    rows.target.address = target;
    driver().check(call.Memcpy2DAsync(&rows, get()), "cuMemcpy2DAsync");
    const std::size_t done = bytes / kRows * kRows;
    target += done;
    source += done;
    bytes -= done;
  }
  copy(target, source, bytes);
}
void CudaStream::wait_for(EventHandle event) {
  driver().check(driver().call.StreamWaitEvent(get(), event, 0), "cuStreamWaitEvent");
}
bool CudaStream::ready() const {
  return is_done(driver(), driver().call.StreamQuery(get()), "cuStreamQuery");
}
void CudaStream::synchronize() const {
  driver().check(driver().call.StreamSynchronize(get()), "cuStreamSynchronize");
}

CudaEvent::CudaEvent(const Driver& driver, Sharing sharing)
    : Owned(driver, made<EventHandle>(driver, "cuEventCreate", [&](EventHandle* event) {
              const unsigned shared = sharing == Sharing::kProcesses ? kInterprocessEvent : 0;
              return driver.call.EventCreate(event, kEventWithoutTime | shared);
            })) {}
CudaEvent::CudaEvent(const Driver& driver, const IpcHandle& handle)
    : Owned(driver, made<EventHandle>(driver, "cuIpcOpenEventHandle", [&](EventHandle* event) {
              return driver.call.IpcOpenEventHandle(event, handle);
            })) {}
void CudaEvent::record(StreamHandle stream) {
  driver().check(driver().call.EventRecord(get(), stream), "cuEventRecord");
}
bool CudaEvent::ready() const {
  return is_done(driver(), driver().call.EventQuery(get()), "cuEventQuery");
}
void CudaEvent::synchronize() const {
  driver().check(driver().call.EventSynchronize(get()), "cuEventSynchronize");
}
IpcHandle CudaEvent::exported() const {
  return made<IpcHandle>(driver(), "cuIpcGetEventHandle", [&](IpcHandle* handle) {
    return driver().call.IpcGetEventHandle(handle, get());
  });
}

DeviceAllocation::DeviceAllocation(const Driver& driver, std::size_t bytes)
    : Owned(driver, made<Address>(driver, bytes_of("cuMemAlloc", bytes), [&](Address* address) {
              return driver.call.MemAlloc(address, bytes);
            })) {}
IpcHandle DeviceAllocation::exported() const {
  return made<IpcHandle>(driver(), "cuIpcGetMemHandle", [&](IpcHandle* handle) {
    return driver().call.IpcGetMemHandle(handle, get());
  });
}

PinnedAllocation::PinnedAllocation(const Driver& driver, std::size_t bytes)
    : Owned(driver, made<void*>(driver, bytes_of("cuMemHostAlloc", bytes), [&](void** address) {
              return driver.call.MemHostAlloc(address, bytes, kPortableMemory);
            })) {}

ImportedAllocation::ImportedAllocation(const Driver& driver, const IpcHandle& handle)
    : Owned(driver, made<Address>(driver, "cuIpcOpenMemHandle", [&](Address* address) {
              return driver.call.IpcOpenMemHandle(address, handle, kLazyPeerAccess);
            })) {}

CudaModule::CudaModule(const Driver& driver, const std::string& image)
    : Owned(driver, made<ModuleHandle>(driver, "cuModuleLoadData", [&](ModuleHandle* module) {
              return driver.call.ModuleLoadData(module, image.c_str());
            })) {}
FunctionHandle CudaModule::function(const std::string& name) const {
  return made<FunctionHandle>(
      driver(), "cuModuleGetFunction of " + name, [&](FunctionHandle* function) {
        return driver().call.ModuleGetFunction(function, get(), name.c_str());
      });
}

bool is_cubin(const std::string& code) {
  return code.starts_with(
      "\x7f"
      "ELF");
}

// The driver writes to the options as long as the link exists.
std::string linked(const Driver& driver, const std::vector<std::string>& parts) {
  std::array<char, 2048> log{};
  std::array<int, 2> names = {kErrorLog, kErrorLogBytes};
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  const auto what = [&log](const char* function) {
    return std::string(function) + (log[0] != '\0' ? std::string(" (") + log.data() + ")" : "");
  };
  using Link = Owned<LinkHandle, &Functions::LinkDestroy>;
  const Link link(driver, made<LinkHandle>(driver, "cuLinkCreate", [&](LinkHandle* handle) {
                    return driver.call.LinkCreate(2, names.data(), values.data(), handle);
                  }));
  for (const std::string& part : parts) {
    const bool binary = is_cubin(part);
    const std::size_t bytes = binary ? part.size() : std::strlen(part.c_str()) + 1;
    const Result code = driver.call.LinkAddData(link.get(), binary ? kCubin : kPtx, part.c_str(),
                                                bytes, "gradred", 0, nullptr, nullptr);
    driver.check(code, what("cuLinkAddData").c_str());
  }
  void* code = nullptr;
  std::size_t bytes = 0;
  const Result done = driver.call.LinkComplete(link.get(), &code, &bytes);
  driver.check(done, what("cuLinkComplete").c_str());
  return {static_cast<const char*>(code), bytes};
}

}  // namespace gradred::device
