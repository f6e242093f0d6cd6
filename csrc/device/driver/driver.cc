#include "device/driver/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/driver_calls.h"

namespace gradred::device {
namespace {

enum class Needed : bool { kOptional, kRequired };

// One function of the driver: its name, the name of the symbol with the signature in Functions, the
// version that introduced this signature, whether gradred needs it, and where its address is
// stored.
template <class Function>
struct Entry {
  const char* name;
  const char* symbol;
  int since;
  Needed needed;
  Function Functions::* slot;
};
template <class Function>
Entry(const char*, const char*, int, Needed, Function Functions::*) -> Entry<Function>;

constexpr std::tuple kEntries{
    Entry{"cuGetErrorName", "cuGetErrorName", 6000, Needed::kRequired, &Functions::GetErrorName},
    Entry{"cuGetErrorString", "cuGetErrorString", 6000, Needed::kRequired,
          &Functions::GetErrorString},
    Entry{"cuDeviceGetName", "cuDeviceGetName", 2000, Needed::kRequired, &Functions::DeviceGetName},
    Entry{"cuDeviceGetAttribute", "cuDeviceGetAttribute", 2000, Needed::kRequired,
          &Functions::DeviceGetAttribute},
    Entry{"cuDeviceGetUuid", "cuDeviceGetUuid_v2", 11040, Needed::kRequired,
          &Functions::DeviceGetUuid},
    Entry{"cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState", 7000, Needed::kRequired,
          &Functions::DevicePrimaryCtxGetState},
    Entry{"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, Needed::kRequired,
          &Functions::DevicePrimaryCtxRetain},
    Entry{"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000, Needed::kRequired,
          &Functions::DevicePrimaryCtxRelease},
    Entry{"cuCtxGetCurrent", "cuCtxGetCurrent", 4000, Needed::kRequired, &Functions::CtxGetCurrent},
    Entry{"cuCtxGetDevice", "cuCtxGetDevice", 2000, Needed::kRequired, &Functions::CtxGetDevice},
    Entry{"cuCtxGetId", "cuCtxGetId", 12000, Needed::kOptional, &Functions::CtxGetId},
    Entry{"cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000, Needed::kRequired,
          &Functions::CtxPushCurrent},
    Entry{"cuCtxPopCurrent", "cuCtxPopCurrent_v2", 4000, Needed::kRequired,
          &Functions::CtxPopCurrent},
    Entry{"cuCtxSynchronize", "cuCtxSynchronize", 2000, Needed::kRequired,
          &Functions::CtxSynchronize},
    Entry{"cuStreamCreate", "cuStreamCreate", 2000, Needed::kRequired, &Functions::StreamCreate},
    Entry{"cuStreamCreateWithPriority", "cuStreamCreateWithPriority", 5050, Needed::kRequired,
          &Functions::StreamCreateWithPriority},
    Entry{"cuCtxGetStreamPriorityRange", "cuCtxGetStreamPriorityRange", 5050, Needed::kRequired,
          &Functions::CtxGetStreamPriorityRange},
    Entry{"cuThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode", 10010,
          Needed::kOptional, &Functions::ThreadExchangeStreamCaptureMode},
    Entry{"cuStreamIsCapturing", "cuStreamIsCapturing", 10000, Needed::kOptional,
          &Functions::StreamIsCapturing},
    Entry{"cuStreamDestroy", "cuStreamDestroy_v2", 4000, Needed::kRequired,
          &Functions::StreamDestroy},
    Entry{"cuStreamQuery", "cuStreamQuery", 2000, Needed::kRequired, &Functions::StreamQuery},
    Entry{"cuStreamSynchronize", "cuStreamSynchronize", 2000, Needed::kRequired,
          &Functions::StreamSynchronize},
    Entry{"cuStreamWaitEvent", "cuStreamWaitEvent", 3020, Needed::kRequired,
          &Functions::StreamWaitEvent},
    Entry{"cuEventCreate", "cuEventCreate", 2000, Needed::kRequired, &Functions::EventCreate},
    Entry{"cuEventDestroy", "cuEventDestroy_v2", 4000, Needed::kRequired, &Functions::EventDestroy},
    Entry{"cuEventRecord", "cuEventRecord", 2000, Needed::kRequired, &Functions::EventRecord},
    Entry{"cuEventQuery", "cuEventQuery", 2000, Needed::kRequired, &Functions::EventQuery},
    Entry{"cuEventSynchronize", "cuEventSynchronize", 2000, Needed::kRequired,
          &Functions::EventSynchronize},
    Entry{"cuMemAlloc", "cuMemAlloc_v2", 3020, Needed::kRequired, &Functions::MemAlloc},
    Entry{"cuMemFree", "cuMemFree_v2", 3020, Needed::kRequired, &Functions::MemFree},
    Entry{"cuMemHostAlloc", "cuMemHostAlloc", 2020, Needed::kRequired, &Functions::MemHostAlloc},
    Entry{"cuMemFreeHost", "cuMemFreeHost", 2000, Needed::kRequired, &Functions::MemFreeHost},
    Entry{"cuMemcpyAsync", "cuMemcpyAsync", 4000, Needed::kRequired, &Functions::MemcpyAsync},
    Entry{"cuMemcpy2DAsync", "cuMemcpy2DAsync_v2", 3020, Needed::kRequired,
          &Functions::Memcpy2DAsync},
    Entry{"cuMemGetAddressRange", "cuMemGetAddressRange_v2", 3020, Needed::kRequired,
          &Functions::MemGetAddressRange},
    Entry{"cuPointerGetAttributes", "cuPointerGetAttributes", 7000, Needed::kRequired,
          &Functions::PointerGetAttributes},
    Entry{"cuIpcGetMemHandle", "cuIpcGetMemHandle", 4010, Needed::kRequired,
          &Functions::IpcGetMemHandle},
    Entry{"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", 11000, Needed::kRequired,
          &Functions::IpcOpenMemHandle},
    Entry{"cuIpcCloseMemHandle", "cuIpcCloseMemHandle", 4010, Needed::kRequired,
          &Functions::IpcCloseMemHandle},
    Entry{"cuIpcGetEventHandle", "cuIpcGetEventHandle", 4010, Needed::kRequired,
          &Functions::IpcGetEventHandle},
    Entry{"cuIpcOpenEventHandle", "cuIpcOpenEventHandle", 4010, Needed::kRequired,
          &Functions::IpcOpenEventHandle},
    Entry{"cuLinkCreate", "cuLinkCreate_v2", 6050, Needed::kRequired, &Functions::LinkCreate},
    Entry{"cuLinkAddData", "cuLinkAddData_v2", 6050, Needed::kRequired, &Functions::LinkAddData},
    Entry{"cuLinkComplete", "cuLinkComplete", 5050, Needed::kRequired, &Functions::LinkComplete},
    Entry{"cuLinkDestroy", "cuLinkDestroy", 5050, Needed::kRequired, &Functions::LinkDestroy},
    Entry{"cuModuleLoadData", "cuModuleLoadData", 2000, Needed::kRequired,
          &Functions::ModuleLoadData},
    Entry{"cuModuleUnload", "cuModuleUnload", 2000, Needed::kRequired, &Functions::ModuleUnload},
    Entry{"cuModuleGetFunction", "cuModuleGetFunction", 2000, Needed::kRequired,
          &Functions::ModuleGetFunction},
    Entry{"cuLaunchKernel", "cuLaunchKernel", 4000, Needed::kRequired, &Functions::LaunchKernel},
    Entry{"cuStreamWaitValue32", "cuStreamWaitValue32_v2", 11070, Needed::kOptional,
          &Functions::StreamWaitValue32},
    Entry{"cuStreamWriteValue32", "cuStreamWriteValue32_v2", 11070, Needed::kOptional,
          &Functions::StreamWriteValue32},
};

// The driver's functions themselves, if the table has functions that measure them.
Functions measured;

template <std::size_t index, class Function>
struct Measuring;
template <std::size_t index, class... Arguments>
struct Measuring<index, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    constexpr auto kEntry = std::get<index>(kEntries);
    const std::uint64_t begin = now_ns();
    const Result code = (measured.*kEntry.slot)(arguments...);
    note_driver_call(index, kEntry.name, begin, now_ns());
    return code;
  }
};

// Puts the measuring functions into the table.
template <std::size_t... index>
void measure(Functions& call, std::index_sequence<index...>) {
  measured = call;
  const auto put = [&]<std::size_t at, class Function>(Function Functions::* slot) {
    if (call.*slot != nullptr) call.*slot = &Measuring<at, Function>::call;
  };
  (put.template operator()<index>(std::get<index>(kEntries).slot), ...);
}

// Finds functions with the driver's own cuGetProcAddress, which respects libraries that intercept
// the driver. Uses the symbol instead if the driver lacks cuGetProcAddress or does not know the
// name.
class Finder {
 public:
  Finder(void* library, int version) : library_(library), version_(version) {
    ask_ = reinterpret_cast<Ask>(dlsym(library, "cuGetProcAddress_v2"));
  }
  void* find(const char* name, const char* symbol, int since) const {
    if (since > version_) return nullptr;
    void* found = nullptr;
    int status = 0;
    if (ask_ != nullptr && ask_(name, &found, since, 0, &status) == kSuccess && found != nullptr) {
      return found;
    }
    return dlsym(library_, symbol);
  }

 private:
  using Ask = Result (*)(const char* name, void** function, int version, std::uint64_t flags,
                         int* status);
  void* library_;
  int version_;
  Ask ask_;
};

std::string in_words(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

[[noreturn]] void throw_too_old(const std::string& what) {
  throw DeviceError("the CUDA driver: " + what + "; gradred needs a driver for CUDA " +
                    in_words(Driver::kOldest) +
                    " or later. Update the driver, or pass arrays in "
                    "host memory.");
}

// Errors after which each later call of the process fails as well.
bool ends_the_context(Result code) {
  constexpr Result kSticky[] = {214, 700, 702, 710, 714, 715, 716, 717, 718, 719};
  return std::find(std::begin(kSticky), std::end(kSticky), code) != std::end(kSticky);
}

// Errors of a single call, or of a feature that the driver lacks; the device is not at fault.
bool is_of_one_call(Result code) {
  constexpr Result kOfOneCall[] = {1,   101, 200, 205, 209, 217, 218, 220, 221, 222, 223, 304,
                                   400, 401, 500, 701, 704, 705, 708, 711, 712, 713, 800, 801};
  return is_of_capture(code) ||
         std::find(std::begin(kOfOneCall), std::end(kOfOneCall), code) != std::end(kOfOneCall);
}

// What the user can do about an error.
std::string_view remedy_for(Result code) {
  switch (code) {
    case kOutOfMemory:
      return "Free arrays on this device, or let fewer ranks share it";
    case kNotInitialized:
    case kInvalidContext:
      return "Make an array on the device with the library that you use, before this call";
    case kNoDevice:
      return "Look at nvidia-smi and CUDA_VISIBLE_DEVICES";
    default:
      if (ends_the_context(code)) {
        return "After such an error a process cannot use the device again: start the program anew";
      }
      return is_of_one_call(code) ? "The device can be used further"
                                  : "If it stays, start the program anew";
  }
}

std::atomic<const Driver*> the_driver{nullptr};  // set once and never freed

const Driver& keep(void* library) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (the_driver.load(std::memory_order_relaxed) == nullptr) {
    the_driver.store(new Driver(library), std::memory_order_release);
  }
  return *the_driver.load(std::memory_order_relaxed);
}

}  // namespace

const Driver* Driver::loaded(const std::string& library) {
  if (const Driver* driver = the_driver.load(std::memory_order_acquire)) return driver;
  void* const found = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  return found != nullptr ? &keep(found) : nullptr;
}

const Driver& Driver::load(const std::string& library) {
  if (const Driver* driver = the_driver.load(std::memory_order_acquire)) return *driver;
  void* const found = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (found != nullptr) return keep(found);
  const char* const why = dlerror();
  throw DeviceError(
      "the CUDA driver: it cannot be loaded: " + (why != nullptr ? std::string(why) : library) +
      ". Install NVIDIA's driver, or let this container see it.");
}

Driver::Driver(void* library) {
  call.DriverGetVersion =
      reinterpret_cast<decltype(call.DriverGetVersion)>(dlsym(library, "cuDriverGetVersion"));
  if (call.DriverGetVersion == nullptr || call.DriverGetVersion(&version) != kSuccess) {
    throw_too_old("it does not tell its version");
  }
  if (version < kOldest) throw_too_old("it is one for CUDA " + in_words(version));
  const Finder finder(library, version);
  const auto resolve = [&]<class Function>(const Entry<Function>& entry) {
    void* const found = finder.find(entry.name, entry.symbol, entry.since);
    if (found == nullptr && entry.needed == Needed::kRequired) {
      throw_too_old(std::string("it has no ") + entry.name);
    }
    call.*entry.slot = reinterpret_cast<Function>(found);
  };
  std::apply([&](const auto&... entry) { (resolve(entry), ...); }, kEntries);
  if (measure_driver_calls) {
    measure(call, std::make_index_sequence<std::tuple_size_v<decltype(kEntries)>>());
  }
}

bool Driver::initialised() const {
  ContextHandle context = nullptr;
  const Result code = call.CtxGetCurrent(&context);
  return code != kNotInitialized && code != kDeinitialized;
}

ContextHandle Driver::current() const {
  ContextHandle context = nullptr;
  return call.CtxGetCurrent(&context) == kSuccess ? context : nullptr;
}

std::string Driver::version_text() const { return in_words(version); }

std::string Driver::describe(Result code, const char* what, const char* file, int line) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (call.GetErrorName(code, &name) != kSuccess || name == nullptr) name = "an unknown error";
  if (call.GetErrorString(code, &text) != kSuccess || text == nullptr) text = "no text";
  const char* const base = std::strrchr(file, '/');
  return std::string(what) + ": " + name + " (" + std::to_string(code) + "), " + text + ", at " +
         (base != nullptr ? base + 1 : file) + ":" + std::to_string(line);
}

void Driver::fail(Result code, const char* what, const char* file, int line) const {
  throw DriverError(describe(code, what, file, line) + ". " + std::string(remedy_for(code)) + ".",
                    code);
}

void Driver::complain(Result code, const char* what, const char* file, int line) const noexcept {
  if (code == kSuccess || code == kNotInitialized || code == kDeinitialized ||
      code == kContextIsDestroyed) {
    return;
  }
  try {
    std::fprintf(stderr, "gradred: %s\n", describe(code, what, file, line).c_str());
  } catch (const std::exception&) {  // there is no memory for the text
  }
}

}  // namespace gradred::device
