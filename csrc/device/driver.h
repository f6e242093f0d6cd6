// The CUDA driver that this process has: libcuda, looked up when it runs. No headers of CUDA, no
// library at build time, and without a driver everything else works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/errors.h"

namespace gradred::device {

// ---- the driver's types, as its binary interface has them -----------------------------------

using Result = int;
using Ordinal = int;            // of a device, among those that the process sees
using Address = std::uint64_t;  // the device's and the host's are of one space
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
  kCapturedElsewhere = 906,  // of the legacy default stream: another one is being captured
};

enum PointerAttribute : int {
  kContextOf = 1,
  kMemoryType = 2,  // kTypeHost, kTypeDevice; 0: no memory of the driver's
  kBufferId = 7,    // never given twice in one process
  kIsManaged = 8,
  kDeviceOf = 9,
  kIsIpcCapable = 10,  // by cuIpcGetMemHandle: not so in pools and in mapped chunks
  kRangeStart = 11,    // of the allocation; of mapped chunks, of all that was reserved
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
    int type = 4;  // CU_MEMORYTYPE_UNIFIED: of `address`, wherever that is
    const void* host = nullptr;
    Address address = 0;
    void* array = nullptr;
    std::size_t pitch = 0;
  };
  Side source, target;
  std::size_t width = 0, height = 0;
};

// cuCtxGetCurrent is CtxGetCurrent here. The table in driver.cc says which must be there.
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
  Result (*CtxGetId)(ContextHandle context, unsigned long long* id);  // null where it has none
  Result (*CtxPushCurrent)(ContextHandle context);
  Result (*CtxPopCurrent)(ContextHandle* context);
  Result (*CtxSynchronize)();
  Result (*StreamCreate)(StreamHandle* stream, unsigned flags);
  Result (*StreamCreateWithPriority)(StreamHandle* stream, unsigned flags, int priority);
  Result (*CtxGetStreamPriorityRange)(int* least, int* greatest);
  Result (*ThreadExchangeStreamCaptureMode)(int* mode);           // null where it has none
  Result (*StreamIsCapturing)(StreamHandle stream, int* status);  // null where it has none
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
  Result (*PointerGetAttribute)(void* value, int attribute, Address address);  // slow: to compare
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
                              unsigned flags);  // null where the driver has none, like the next
  Result (*StreamWriteValue32)(StreamHandle stream, Address address, std::uint32_t value,
                               unsigned flags);
};

// Not while a stream is captured in a CUDA graph.
constexpr bool is_of_capture(Result code) { return code >= 900 && code < 920; }

// What the driver refused, by its own code.
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

  // Null while nobody in this process has loaded the library: then no memory here is a device's.
  // Loads nothing. Throws DeviceError where the driver is too old.
  static const Driver* loaded(const std::string& library = kLibrary);
  // Loads it, and throws DeviceError that says what is missing.
  static const Driver& load(const std::string& library = kLibrary);

  explicit Driver(void* library);

  // Whether this process has called cuInit, by whichever library; a forked child has not. Gradred
  // never does: before the user's library has, there is no memory of a device to be asked for.
  bool initialised() const;
  // The current context of this thread, which the user's library has made; null: none. It may
  // appear at any time, so nobody keeps the answer.
  ContextHandle current() const;

  // Throws DriverError with the code's name and text, unless it is kSuccess.
  void check(Result code, const char* what, const char* file = __builtin_FILE(),
             int line = __builtin_LINE()) const {
    if (code != kSuccess) [[unlikely]]
      fail(code, what, file, line);
  }
  // For destructors: writes a line to stderr, unless the driver has only ended before.
  void complain(Result code, const char* what, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) const noexcept;
  // The same where a context cannot be made current: with it all has ended that was made in it.
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
