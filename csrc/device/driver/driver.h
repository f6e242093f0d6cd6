// The CUDA driver of this process: libcuda, loaded at run time. Neither CUDA's headers nor its
// libraries are needed at build time, and without a driver everything else works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/errors.h"

namespace gradred::device {

// ---- the driver's types, as its binary interface has them -----------------------------------

using Result = int;
using Ordinal = int;            // a device's number among those that the process sees
using Address = std::uint64_t;  // device and host share one address space
inline Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
using ContextHandle = struct OpaqueContext*;
using StreamHandle = struct OpaqueStream*;
using EventHandle = struct OpaqueEvent*;
using ModuleHandle = struct OpaqueModule*;
using LinkHandle = struct OpaqueLink*;
using FunctionHandle = struct OpaqueFunction*;
struct IpcHandle {
  std::byte bytes[64];
};
struct Uuid {
  std::byte bytes[16];
  bool operator==(const Uuid&) const = default;
};

enum Code : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForDevice = 209,
  kInvalidPtx = 218,
  kNoJitCompiler = 221,
  kUnsupportedPtx = 222,
  kJitIsOff = 223,
  kNotReady = 600,
  kIllegalAddress = 700,
  kContextIsDestroyed = 709,
  // The legacy default stream is used while another stream is being captured.
  kCapturedElsewhere = 906,
};

enum PointerAttribute : int {
  kContextOf = 1,
  kMemoryType = 2,  // kTypeHost, kTypeDevice; 0: not memory of the driver
  kBufferId = 7,    // never reused within a process
  kIsManaged = 8,
  kDeviceOf = 9,
  kIsIpcCapable = 10,  // by cuIpcGetMemHandle; false for pools and mapped chunks
  kRangeStart = 11,    // of the allocation; for mapped chunks, of the whole reserved range
  kRangeBytes = 12,
};
enum LinkInput : int { kCubin = 0, kPtx = 1 };
enum LinkOption : int { kErrorLog = 5, kErrorLogBytes = 6 };
enum DeviceAttribute : int {
  kMultiprocessors = 16,
  kIsServedByMps = 133,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
};
inline constexpr unsigned kTypeHost = 1, kTypeDevice = 2;

// CUDA_MEMCPY2D.
struct Rows {
  struct Side {
    std::size_t x = 0, y = 0;
    int type = 4;  // CU_MEMORYTYPE_UNIFIED: `address` may be on the device or the host
    const void* host = nullptr;
    Address address = 0;
    void* array = nullptr;
    std::size_t pitch = 0;
  };
  Side source, target;
  std::size_t width = 0, height = 0;
};

// The driver's functions; cuCtxGetCurrent is CtxGetCurrent here. The table in driver.cc says which
// of them are required.
struct Functions {
  Result (*DriverGetVersion)(int* version);
  Result (*GetErrorName)(Result code, const char** name);
  Result (*GetErrorString)(Result code, const char** text);
  Result (*DeviceGetName)(char* name, int bytes, Ordinal device);
  Result (*DeviceGetAttribute)(int* value, int attribute, Ordinal device);
  Result (*DeviceGetUuid)(Uuid* uuid, Ordinal device);
  Result (*DevicePrimaryCtxGetState)(Ordinal device, unsigned* flags, int* active);
  Result (*DevicePrimaryCtxRetain)(ContextHandle* context, Ordinal device);
  Result (*DevicePrimaryCtxRelease)(Ordinal device);
  Result (*CtxGetCurrent)(ContextHandle* context);
  Result (*CtxGetDevice)(Ordinal* device);
  // Nullptr if the driver lacks it.
  Result (*CtxGetId)(ContextHandle context, unsigned long long* id);
  Result (*CtxPushCurrent)(ContextHandle context);
  Result (*CtxPopCurrent)(ContextHandle* context);
  Result (*CtxSynchronize)();
  Result (*StreamCreate)(StreamHandle* stream, unsigned flags);
  Result (*StreamCreateWithPriority)(StreamHandle* stream, unsigned flags, int priority);
  Result (*CtxGetStreamPriorityRange)(int* least, int* greatest);
  Result (*ThreadExchangeStreamCaptureMode)(int* mode);           // nullptr if the driver lacks it
  Result (*StreamIsCapturing)(StreamHandle stream, int* status);  // nullptr if the driver lacks it
  Result (*StreamDestroy)(StreamHandle stream);
  Result (*StreamQuery)(StreamHandle stream);
  Result (*StreamSynchronize)(StreamHandle stream);
  Result (*StreamWaitEvent)(StreamHandle stream, EventHandle event, unsigned flags);
  Result (*EventCreate)(EventHandle* event, unsigned flags);
  Result (*EventDestroy)(EventHandle event);
  Result (*EventRecord)(EventHandle event, StreamHandle stream);
  Result (*EventQuery)(EventHandle event);
  Result (*EventSynchronize)(EventHandle event);
  Result (*MemAlloc)(Address* address, std::size_t bytes);
  Result (*MemFree)(Address address);
  Result (*MemHostAlloc)(void** address, std::size_t bytes, unsigned flags);
  Result (*MemFreeHost)(void* address);
  Result (*MemcpyAsync)(Address target, Address source, std::size_t bytes, StreamHandle stream);
  Result (*Memcpy2DAsync)(const Rows* rows, StreamHandle stream);
  Result (*MemGetAddressRange)(Address* begin, std::size_t* bytes, Address address);
  Result (*PointerGetAttributes)(unsigned count, const int* attributes, void** values,
                                 Address address);
  // Slow; used only for comparison.
  Result (*IpcGetMemHandle)(IpcHandle* handle, Address address);
  Result (*IpcOpenMemHandle)(Address* address, IpcHandle handle, unsigned flags);
  Result (*IpcCloseMemHandle)(Address address);
  Result (*IpcGetEventHandle)(IpcHandle* handle, EventHandle event);
  Result (*IpcOpenEventHandle)(EventHandle* event, IpcHandle handle);
  Result (*LinkCreate)(unsigned options, int* names, void** values, LinkHandle* link);
  Result (*LinkAddData)(LinkHandle link, int type, const void* data, std::size_t bytes,
                        const char* name, unsigned options, int* names, void** values);
  Result (*LinkComplete)(LinkHandle link, void** code, std::size_t* bytes);
  Result (*LinkDestroy)(LinkHandle link);
  Result (*ModuleLoadData)(ModuleHandle* module, const void* image);
  Result (*ModuleUnload)(ModuleHandle module);
  Result (*ModuleGetFunction)(FunctionHandle* function, ModuleHandle module, const char* name);
  Result (*LaunchKernel)(FunctionHandle function, unsigned blocks_x, unsigned blocks_y,
                         unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                         unsigned threads_z, unsigned shared_bytes, StreamHandle stream,
                         void** arguments, void** extra);
  Result (*StreamWaitValue32)(StreamHandle stream, Address address, std::uint32_t value,
                              unsigned flags);  // nullptr if the driver lacks it, like the next one
  Result (*StreamWriteValue32)(StreamHandle stream, Address address, std::uint32_t value,
                               unsigned flags);
};

// Whether a call was refused because a stream is being captured in a CUDA graph.
constexpr bool is_of_capture(Result code) { return code >= 900 && code < 920; }

// An error of the driver, with its code.
class DriverError : public DeviceError {
 public:
  DriverError(const std::string& text, Result code) : DeviceError(text), code_(code) {}
  Result code() const { return code_; }

 private:
  Result code_;
};

// ---- the driver -------------------------------------------------------------------------------

class Driver {
 public:
  static constexpr int kOldest = 11040;  // 11.4
  static constexpr const char* kLibrary = "libcuda.so.1";

  // Returns nullptr as long as no library in this process has loaded the driver; then no memory
  // here is a device's. Does not load it. Throws DeviceError if the driver is too old.
  static const Driver* loaded(const std::string& library = kLibrary);
  // Loads the driver. Throws DeviceError, which says what is missing.
  static const Driver& load(const std::string& library = kLibrary);

  explicit Driver(void* library);

  // Whether any library in this process has called cuInit; a forked child has not. gradred never
  // calls it: before the user's library has, there is no device memory to ask about.
  bool initialised() const;
  // The current context of this thread, which the user's library has made; nullptr if there is
  // none. It may change at any time, so the result must not be cached.
  ContextHandle current() const;

  // Throws DriverError with the name and text of `code`, unless that is kSuccess.
  void check(Result code, const char* what, const char* file = __builtin_FILE(),
             int line = __builtin_LINE()) const {
    if (code != kSuccess) [[unlikely]]
      fail(code, what, file, line);
  }
  // For destructors: writes a line to stderr, unless the driver or the context has ended before.
  void complain(Result code, const char* what, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) const noexcept;
  // The same for a context that cannot be made current: everything that was made in it has ended
  // with it.
  void complain_of_context(Result code, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) const noexcept {
    complain(code == kInvalidContext ? kContextIsDestroyed : code, "cuCtxPushCurrent", file, line);
  }
  std::string version_text() const;

  Functions call{};
  int version = 0;  // 1000 * major + 10 * minor

 private:
  [[noreturn]] void fail(Result code, const char* what, const char* file, int line) const;
  std::string describe(Result code, const char* what, const char* file, int line) const;
};

}  // namespace gradred::device
