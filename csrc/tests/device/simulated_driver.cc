// A library with libcuda's functions but no GPU, for tests of code that uses the CUDA driver. The
// same binaries run on it and on the real driver. It tests logic, not speed.
//
// It makes errors of a program visible, immediately and every time:
// - A host thread that accesses device memory faults.
// - Copies run late, so data is missing if the program did not wait for it.
// - Freed memory becomes invalid at once, even before earlier work is done. The real driver may
//   wait in cuMemFree, but no program should rely on it. The addresses are reused at once, with a
//   new buffer id.
// - A context is current only in threads that have pushed it.
//
// A stream holds a limited number of tasks that have not begun. A thread that adds another task
// waits, and blocks all other threads' calls to the driver.
//
// Environment variables: SIMULATED_CUDA_VERSION, _DEVICES, _SEED, _FAIL (name:code:after,...),
// _QUEUE (tasks that a stream holds). The functions simulated_cuda_set, simulated_cuda_fail and
// simulated_cuda_count do the rest.
#include "simulated_driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "simulated_memory.h"
#include "simulated_streams.h"

namespace simulated {
namespace {

struct CodeText {
  int code;
  const char* name;
  const char* text;
};
constexpr std::array kCodes{
    CodeText{kSuccess, "CUDA_SUCCESS", "no error"},
    CodeText{kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    CodeText{kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    CodeText{kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    CodeText{kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    CodeText{kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    CodeText{kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    CodeText{kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    CodeText{kAlreadyMapped, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    CodeText{214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    CodeText{222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX is unsupported"},
    CodeText{kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    CodeText{kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    CodeText{kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    CodeText{kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS",
             "an illegal memory access was encountered"},
};

struct Context {
  int device = 0;
  int retained = 0;
  unsigned long long id = 0;  // unique
};

// Counts in memory that processes may share.
struct EventCounts {
  std::atomic<std::uint64_t> recorded{0}, completed{0};
};
struct Event {
  std::shared_ptr<void> keep;
  EventCounts* counts = nullptr;
  int file = -1;  // of an event that processes share
};

struct Chunk {
  std::shared_ptr<Pages> pages;
};

// The content of an IPC handle (64 bytes).
struct Exported {
  std::uint64_t magic;
  int process, file;
  std::uint64_t bytes, id, begin;
};
constexpr std::uint64_t kMemoryMagic = 0x6d656d6f72790001, kEventMagic = 0x6576656e74000001;

struct IpcHandle {
  char bytes[64];
};

// Each context opens an allocation separately.
struct ImportKey {
  int process;
  std::uint64_t id;  // of the allocation in its process
  unsigned long long context;
  auto operator<=>(const ImportKey&) const = default;
};
struct Imported {
  Address address;
  int times;
  Address begin;  // address in its owner's process
  std::uint64_t bytes;
  bool overlaps(const Exported& other) const {
    return times > 0 && begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

long number(const char* variable, long otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atol(text) : otherwise;
}

constexpr int kMaxDevices = 8;

struct Driver {
  std::mutex mutex;
  int process = 0;  // process that has called cuInit; a forked child has not
  int devices = 1;
  std::array<Context, kMaxDevices> primary{};
  std::map<std::string, std::pair<int, long>, std::less<>>
      failing;                                        // code, number of calls before it
  std::map<std::string, unsigned, std::less<>> slow;  // microseconds; constant after setup
  std::atomic<int> lost{0};                           // code that every call returns from now on
  std::atomic<bool> synchronises{false};              // calls that allocate, free or load
  std::mutex synchronising;
  std::atomic<long> shift{0};
  std::atomic<int> full{0};  // threads that wait for room in a stream
  std::map<void*, StreamPointer> streams;
  std::map<void*, std::shared_ptr<Event>> events;
  std::map<std::uint64_t, std::shared_ptr<Chunk>> chunks;
  std::map<ImportKey, Imported> imported;
  std::uint64_t handles = 0;
  unsigned long long contexts = 0;  // made so far
  std::atomic<long> host_allocations{0}, copies{0}, records{0}, calls{0};
  std::atomic<int> served_by_mps{static_cast<int>(number("SIMULATED_CUDA_MPS", 0))};
  Memory memory;
  // The real driver reads CUDA_DEVICE_MAX_CONNECTIONS as well.
  Streams queues{static_cast<std::uint64_t>(number("SIMULATED_CUDA_SEED", 1)),
                 static_cast<std::size_t>(number("CUDA_DEVICE_MAX_CONNECTIONS", 8)),
                 static_cast<std::size_t>(number("SIMULATED_CUDA_QUEUE", 500))};
};

// Reads a list like "cuMemAlloc:2,cuLaunchKernel:700:3": names with one or two numbers each.
template <class Take>
void read_list(const char* variable, Take&& take) {
  const char* text = std::getenv(variable);
  std::string_view left = text != nullptr ? text : "";
  while (!left.empty()) {
    const std::string one(left.substr(0, left.find(',')));
    left.remove_prefix(std::min(left.size(), one.size() + 1));
    char name[64] = "";
    int first = 0;
    long second = 0;
    if (std::sscanf(one.c_str(), "%63[^:]:%d:%ld", name, &first, &second) >= 2) {
      take(name, first, second);
    }
  }
}

Driver& driver() {
  static Driver* const only = [] {
    auto* made = new Driver;  // never freed: streams use it until the process ends
    for (int device = 0; device < kMaxDevices; ++device) {
      Context& primary = made->primary[static_cast<std::size_t>(device)];
      primary.device = device;
      primary.id = ++made->contexts;
    }
    read_list("SIMULATED_CUDA_FAIL",
              [&](const char* name, int code, long after) { made->failing[name] = {code, after}; });
    read_list("SIMULATED_CUDA_SLOW", [&](const char* name, int microseconds, long) {
      made->slow[name] = static_cast<unsigned>(microseconds);
    });
    return made;
  }();
  return *only;
}

thread_local std::vector<Context*> contexts;  // the current one is the last
thread_local StreamPointer own_stream;        // the per-thread default stream

Context* current() { return contexts.empty() ? nullptr : contexts.back(); }

}  // namespace

int failing(std::string_view name) {
  Driver& d = driver();
  ++d.calls;
  if (name == "cuEventRecord") ++d.records;
  if (d.synchronises || d.full > 0) const std::lock_guard no_other_waits(d.synchronising);
  if (const auto slow = d.slow.find(name); slow != d.slow.end()) usleep(slow->second);
  if (const int lost = d.lost.load()) return lost;
  if (const int code = forbidden(name)) return code;
  const std::lock_guard lock(d.mutex);
  const auto found = d.failing.find(name);
  if (found != d.failing.end() && found->second.second-- <= 0) return found->second.first;
  return d.process == getpid() ? kSuccess : kNotInitialized;
}

namespace {

StreamPointer stream_of(void* handle) {
  Driver& d = driver();
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= 1) return d.queues.standard();
  if (number == 2) {
    if (!own_stream) own_stream = d.queues.open(true, false);
    return own_stream;
  }
  const std::lock_guard lock(d.mutex);
  const auto found = d.streams.find(handle);
  return found != d.streams.end() ? found->second : nullptr;
}

std::shared_ptr<Event> event_of(void* handle) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  const auto found = d.events.find(handle);
  return found != d.events.end() ? found->second : nullptr;
}

// The last record of the event that this or another process has requested.
Moment moment_of(const std::shared_ptr<Event>& event) {
  const std::lock_guard lock(driver().mutex);
  return {&event->counts->completed, event->counts->recorded.load(), event->keep};
}

// Each record of an event has its own moment, as an earlier one may complete later, in another
// stream. An event that processes share belongs to one stream.
Moment next_moment_of(Event& event) {
  const std::lock_guard lock(driver().mutex);
  if (event.file < 0) {
    const auto counts = std::make_shared<EventCounts>();
    event.counts = counts.get();
    event.keep = counts;
  }
  const std::uint64_t number = event.counts->recorded.fetch_add(1) + 1;
  return {&event.counts->completed, number, event.keep};
}

std::shared_ptr<Event> private_event() {
  auto event = std::make_shared<Event>();
  auto counts = std::make_shared<EventCounts>();
  event->counts = counts.get();
  event->keep = counts;
  return event;
}
std::shared_ptr<Event> shared_event(int file, bool is_new) {
  auto event = std::make_shared<Event>();
  auto pages = std::make_shared<Pages>(file, Memory::kPage);
  event->counts =
      is_new ? new (pages->own()) EventCounts : reinterpret_cast<EventCounts*>(pages->own());
  event->file = file;
  event->keep = pages;
  return event;
}

void* add_event(std::shared_ptr<Event> event) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  void* const handle = event.get();
  d.events[handle] = std::move(event);
  return handle;
}

// Opens another process's file. Returns a negative number if that is impossible, as in a sandbox.
int file_of(const Exported& exported) {
  const std::string path =
      "/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.file);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

// Writes an attribute of an address. If it is not the driver's memory, the value is the driver's
// default.
void tell(int attribute, void* value, const Piece* piece) {
  const bool device = piece != nullptr && piece->kind != Kind::kPinned;
  switch (attribute) {
    case 1:  // the context
      *static_cast<void**>(value) = piece != nullptr ? piece->context : nullptr;
      return;
    case 2:  // the type of memory
      *static_cast<unsigned*>(value) = piece == nullptr ? 0 : device ? 2 : 1;
      return;
    case 7:  // the buffer id
      *static_cast<std::uint64_t*>(value) = piece != nullptr ? piece->id : 0;
      return;
    case 8:  // is managed
      *static_cast<unsigned*>(value) = piece != nullptr && piece->kind == Kind::kManaged;
      return;
    case 9:  // the device
      *static_cast<int*>(value) = piece != nullptr ? piece->device : -2;
      return;
    case 10:  // can be exported
      *static_cast<unsigned*>(value) = piece != nullptr && piece->kind == Kind::kAllocated;
      return;
    case 11:  // the reserved range
      *static_cast<Address*>(value) = piece != nullptr ? piece->range_begin : 0;
      return;
    case 12:
      *static_cast<std::size_t*>(value) = piece != nullptr ? piece->range_bytes : 0;
      return;
    default:
      std::abort();  // no test has needed it
  }
}

int allocate(Kind kind, Address* address, std::size_t bytes) {
  Driver& d = driver();
  const auto made = d.memory.allocate(kind, bytes, current()->device, current());
  if (!made) return kOutOfMemory;
  *address = made->begin;
  return kSuccess;
}

void give_task(const StreamPointer& stream, std::function<void()> work,
               std::vector<Moment> after = {}, std::function<bool()> until = {}) {
  Driver& d = driver();
  if (d.queues.is_full(stream)) {
    ++d.full;
    const std::lock_guard lock(d.synchronising);
    d.queues.wait_for_room(stream);
    --d.full;
  }
  d.queues.give(stream, std::move(work), std::move(after), std::move(until));
}

void copy_later(const StreamPointer& stream, Address target, Address source, std::size_t bytes) {
  give_task(stream, [=] {
    if (!driver().memory.copy(target, source, bytes)) driver().lost = kIllegalAddress;
  });
}

}  // namespace

int failing_in_context(std::string_view name) {
  if (const int code = failing(name)) return code;
  return current() != nullptr ? kSuccess : kInvalidContext;
}

int current_device() { return current()->device; }

int give(void* stream, std::function<bool()> work, std::function<bool()> until) {
  const StreamPointer where = stream_of(stream);
  if (!where) return kInvalidHandle;
  if (record(stream, work, until)) return kSuccess;
  give_task(
      where,
      [work = std::move(work)] {
        if (!work()) driver().lost = kIllegalAddress;
      },
      {}, std::move(until));
  return kSuccess;
}

void* add_stream(bool blocking, bool urgent) {
  Driver& d = driver();
  const StreamPointer made = d.queues.open(blocking, urgent);
  const std::lock_guard lock(d.mutex);
  d.streams[made.get()] = made;
  return made.get();
}

void synchronise_context() {
  Driver& d = driver();
  if (!d.synchronises) return;
  const std::lock_guard lock(d.synchronising);
  for (const Moment& end : d.queues.all_ends()) d.queues.wait_for(end);
}

std::byte* reachable(Address address, std::size_t bytes, std::shared_ptr<void>& keep) {
  return driver().memory.reachable(address, bytes, keep);
}

}  // namespace simulated

using namespace simulated;  // NOLINT: what follows is all of C

extern "C" {

// ---- for tests alone --------------------------------------------------------------------------

// Sets a value by its name:
// - least_delay, most_delay: nanoseconds, for tasks enqueued from now on
// - memory: limit in bytes
// - lost: code that all calls return from now on
// - shift: offset that is added to the addresses of other processes' memory when it is opened
// - synchronises: calls that allocate, free, load or open wait for the device, and all other calls
//   wait for them; a copy to host memory that is not pinned waits for its stream
// - mps: whether the driver reports that MPS serves its devices
void simulated_cuda_set(const char* name, long value) {
  static std::atomic<long> least{0};
  const std::string_view asked = name;
  Driver& d = driver();
  if (asked == "least_delay") {
    least = value;
    d.queues.delay_by(static_cast<std::uint64_t>(value), static_cast<std::uint64_t>(value));
  } else if (asked == "most_delay") {
    d.queues.delay_by(static_cast<std::uint64_t>(least.load()), static_cast<std::uint64_t>(value));
  } else if (asked == "memory") {
    d.memory.limit_to(static_cast<std::size_t>(value));
  } else if (asked == "synchronises") {
    d.synchronises = value != 0;
  } else if (asked == "mps") {
    d.served_by_mps = value != 0 ? 1 : 0;
  } else if (asked == "lost") {
    d.lost = static_cast<int>(value);
  } else if (asked == "shift") {
    d.shift = value;
  } else {
    std::abort();
  }
}

// Makes a function return `code` after `after` more calls. 0: it works again.
void simulated_cuda_fail(const char* function, int code, long after) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  d.failing.erase(function);
  if (code != 0) d.failing[function] = {code, after};
}

// Returns a count by its name:
// - bytes of device memory, streams, events, contexts (retained), pinned allocations
// - imported: allocations of other processes that contexts have opened so far; open: those that are
//   open now
// - launches of kernels, copies, rows (copies of rows), records of events, and calls of these and
//   most other functions, all so far
long simulated_cuda_count(const char* name) {
  const std::string_view asked = name;
  Driver& d = driver();
  if (asked == "bytes") return static_cast<long>(d.memory.allocated());
  if (asked == "launches") return launches();
  if (asked == "copies") return d.copies.load();
  if (asked == "rows") return copies_of_rows();
  if (asked == "records") return d.records.load();
  if (asked == "calls") return d.calls.load();
  const std::lock_guard lock(d.mutex);
  if (asked == "imported") return static_cast<long>(d.imported.size());
  if (asked == "open") {
    return std::ranges::count_if(d.imported, [](const auto& one) { return one.second.times > 0; });
  }
  if (asked == "streams") return static_cast<long>(d.streams.size());
  if (asked == "events") return static_cast<long>(d.events.size());
  if (asked == "pinned") return d.host_allocations.load();
  long retained = 0;
  for (const Context& one : d.primary) retained += one.retained;
  return retained;
}

// ---- the driver -------------------------------------------------------------------------------

int cuInit(unsigned) {
  Driver& d = driver();
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool none = visible != nullptr && (*visible == '\0' || *visible == '-');
  d.devices = none ? 0 : static_cast<int>(number("SIMULATED_CUDA_DEVICES", 1));
  if (d.devices == 0) return kNoDevice;
  const std::lock_guard lock(d.mutex);
  d.process = getpid();
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = static_cast<int>(number("SIMULATED_CUDA_VERSION", 12080));
  return kSuccess;
}

// Finds functions by the name without _v2. Functions whose name ends in _v2 are the newer ones.
int cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t, int*) {
  if (version > number("SIMULATED_CUDA_VERSION", 12080)) return kNotFound;
  if (number("SIMULATED_CUDA_NO_ADDRESSES", 0) != 0) return kNotFound;
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&cuInit), &self) == 0) return kNotFound;
  void* const library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  *function = dlsym(library, (std::string(name) + "_v2").c_str());
  if (*function == nullptr) *function = dlsym(library, name);
  return *function != nullptr ? kSuccess : kNotFound;
}

int cuGetErrorName(int code, const char** name) {
  for (const CodeText& one : kCodes) {
    if (one.code == code) return *name = one.name, kSuccess;
  }
  return kInvalidValue;
}
int cuGetErrorString(int code, const char** text) {
  for (const CodeText& one : kCodes) {
    if (one.code == code) return *text = one.text, kSuccess;
  }
  return kInvalidValue;
}

// ---- devices and contexts ---------------------------------------------------------------------

int cuDeviceGetCount(int* count) {
  if (const int code = failing("cuDeviceGetCount")) return code;
  *count = driver().devices;
  return kSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  if (const int code = failing("cuDeviceGet")) return code;
  *device = ordinal;
  return ordinal >= 0 && ordinal < driver().devices ? kSuccess : kInvalidDevice;
}
int cuDeviceGetName(char* name, int bytes, int device) {
  if (const int code = failing("cuDeviceGetName")) return code;
  std::snprintf(name, static_cast<std::size_t>(bytes), "Simulated GPU %d", device);
  return kSuccess;
}
int cuDeviceGetUuid_v2(void* uuid, int device) {
  if (const int code = failing("cuDeviceGetUuid")) return code;
  std::memset(uuid, device + 1, 16);
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  if (const int code = failing("cuDeviceGetAttribute")) return code;
  switch (attribute) {
    case 16:  // number of multiprocessors
      return *value = 2, kSuccess;
    case 133:
      return *value = driver().served_by_mps, kSuccess;
    case 75:
      return *value = kCapability / 10, kSuccess;
    case 76:
      return *value = kCapability % 10, kSuccess;
    default:
      return kInvalidValue;
  }
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (const int code = failing("cuDevicePrimaryCtxGetState")) return code;
  Driver& d = driver();
  if (device < 0 || device >= d.devices) return kInvalidDevice;
  const std::lock_guard lock(d.mutex);
  *flags = 0;
  *active = d.primary[static_cast<std::size_t>(device)].retained > 0 ? 1 : 0;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (const int code = failing("cuDevicePrimaryCtxRetain")) return code;
  Driver& d = driver();
  if (device < 0 || device >= d.devices) return kInvalidDevice;
  const std::lock_guard lock(d.mutex);
  Context& primary = d.primary[static_cast<std::size_t>(device)];
  ++primary.retained;
  *context = &primary;
  return kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  if (const int code = failing("cuDevicePrimaryCtxRelease")) return code;
  Driver& d = driver();
  if (device < 0 || device >= d.devices) return kInvalidDevice;
  const std::lock_guard lock(d.mutex);
  --d.primary[static_cast<std::size_t>(device)].retained;
  return kSuccess;
}
// Like cudaDeviceReset and Numba's close(): the next context has the same handle.
int cuDevicePrimaryCtxReset_v2(int device) {
  if (const int code = failing("cuDevicePrimaryCtxReset")) return code;
  Driver& d = driver();
  if (device < 0 || device >= d.devices) return kInvalidDevice;
  for (const Moment& end : d.queues.all_ends()) d.queues.wait_for(end);
  Context& primary = d.primary[static_cast<std::size_t>(device)];
  d.memory.end(&primary);
  const std::lock_guard lock(d.mutex);
  primary.id = ++d.contexts;
  return kSuccess;
}
int cuCtxGetId(void* context, unsigned long long* id) {
  if (const int code = failing("cuCtxGetId")) return code;
  if (context == nullptr) return kInvalidContext;
  return *id = static_cast<Context*>(context)->id, kSuccess;
}
int cuCtxGetCurrent(void** context) {
  if (const int code = failing("cuCtxGetCurrent")) return code;
  *context = current();
  return kSuccess;
}
int cuCtxSetCurrent(void* context) {
  if (const int code = failing("cuCtxSetCurrent")) return code;
  if (!contexts.empty()) contexts.pop_back();
  if (context != nullptr) contexts.push_back(static_cast<Context*>(context));
  return kSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  if (const int code = failing("cuCtxPushCurrent")) return code;
  auto* const pushed = static_cast<Context*>(context);
  if (pushed == nullptr || pushed->retained == 0) return kInvalidContext;
  contexts.push_back(pushed);
  return kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  if (const int code = failing_in_context("cuCtxPopCurrent")) return code;
  *context = current();
  contexts.pop_back();
  return kSuccess;
}

// ---- streams and events -----------------------------------------------------------------------

int cuStreamCreate(void** stream, unsigned flags) {
  if (const int code = failing_in_context("cuStreamCreate")) return code;
  *stream = add_stream((flags & 1) == 0, false);
  return kSuccess;
}
int cuStreamDestroy_v2(void* stream) {
  if (const int code = failing_in_context("cuStreamDestroy")) return code;
  Driver& d = driver();
  const StreamPointer ended = stream_of(stream);
  if (!ended || ended == d.queues.standard()) return kInvalidHandle;
  d.queues.close(*ended);
  const std::lock_guard lock(d.mutex);
  d.streams.erase(stream);
  return kSuccess;
}
int cuStreamQuery(void* stream) {
  if (const int code = failing("cuStreamQuery")) return code;
  const StreamPointer asked = stream_of(stream);
  if (!asked) return kInvalidHandle;
  if (!driver().queues.end_of(asked).is_past()) return kNotReady;
  return driver().lost;
}
int cuStreamSynchronize(void* stream) {
  if (const int code = failing("cuStreamSynchronize")) return code;
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2 && current() == nullptr) return kInvalidContext;
  const StreamPointer asked = stream_of(stream);
  if (!asked) return kInvalidHandle;
  driver().queues.wait_for(driver().queues.end_of(asked));
  return driver().lost;
}
int cuCtxSynchronize() {
  if (const int code = failing_in_context("cuCtxSynchronize")) return code;
  for (const Moment& end : driver().queues.all_ends()) driver().queues.wait_for(end);
  return driver().lost;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  if (const int code = failing("cuStreamWaitEvent")) return code;
  const StreamPointer waiting = stream_of(stream);
  const auto awaited = event_of(event);
  if (!waiting || !awaited) return kInvalidHandle;
  give_task(waiting, nullptr, {moment_of(awaited)});
  return kSuccess;
}
int cuEventCreate(void** event, unsigned flags) {
  if (const int code = failing_in_context("cuEventCreate")) return code;
  constexpr unsigned kInterprocess = 4;
  *event = add_event((flags & kInterprocess) != 0
                         ? shared_event(memfd_create("simulated event", MFD_CLOEXEC), true)
                         : private_event());
  return kSuccess;
}
int cuEventDestroy_v2(void* event) {
  if (const int code = failing_in_context("cuEventDestroy")) return code;
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  return d.events.erase(event) == 1 ? kSuccess : kInvalidHandle;
}
int cuEventRecord(void* event, void* stream) {
  if (const int code = failing("cuEventRecord")) return code;
  const StreamPointer where = stream_of(stream);
  const auto recorded = event_of(event);
  if (!where || !recorded) return kInvalidHandle;
  const Moment moment = next_moment_of(*recorded);
  give_task(where, [moment] { moment.count->store(moment.reached, std::memory_order_release); });
  return kSuccess;
}
int cuEventQuery(void* event) {
  if (const int code = failing("cuEventQuery")) return code;
  const auto asked = event_of(event);
  if (!asked) return kInvalidHandle;
  if (!moment_of(asked).is_past()) return kNotReady;
  return driver().lost;
}
int cuEventSynchronize(void* event) {
  if (const int code = failing("cuEventSynchronize")) return code;
  const auto asked = event_of(event);
  if (!asked) return kInvalidHandle;
  driver().queues.wait_for(moment_of(asked));
  return driver().lost;
}

// ---- memory -----------------------------------------------------------------------------------

int cuMemAlloc_v2(Address* address, std::size_t bytes) {
  if (const int code = failing_in_context("cuMemAlloc")) return code;
  synchronise_context();
  return allocate(Kind::kAllocated, address, bytes);
}
int cuMemAllocManaged(Address* address, std::size_t bytes, unsigned) {
  if (const int code = failing_in_context("cuMemAllocManaged")) return code;
  synchronise_context();
  return allocate(Kind::kManaged, address, bytes);
}
int cuMemFree_v2(Address address) {
  if (const int code = failing_in_context("cuMemFree")) return code;
  synchronise_context();
  Memory& memory = driver().memory;
  const bool known =
      memory.release(Kind::kAllocated, address) || memory.release(Kind::kManaged, address);
  return known ? kSuccess : kInvalidValue;
}
int cuMemAllocAsync(Address* address, std::size_t bytes, void*) {
  if (const int code = failing_in_context("cuMemAllocAsync")) return code;
  return allocate(Kind::kPool, address, bytes);
}
int cuMemFreeAsync(Address address, void* stream) {
  if (const int code = failing_in_context("cuMemFreeAsync")) return code;
  const StreamPointer where = stream_of(stream);
  if (!where) return kInvalidHandle;
  give_task(where, [=] { driver().memory.release(Kind::kPool, address); });
  return kSuccess;
}
int cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  if (const int code = failing_in_context("cuMemHostAlloc")) return code;
  synchronise_context();
  const std::size_t size = Memory::in_pages(bytes);
  void* const found =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return kOutOfMemory;
  driver().memory.add_pinned(found, size, current());
  ++driver().host_allocations;
  *address = found;
  return kSuccess;
}
int cuMemFreeHost(void* address) {
  if (const int code = failing_in_context("cuMemFreeHost")) return code;
  synchronise_context();
  Memory& memory = driver().memory;
  const auto piece = memory.find(reinterpret_cast<Address>(address));
  if (!piece || !memory.release(Kind::kPinned, piece->begin)) return kInvalidValue;
  --driver().host_allocations;
  munmap(address, piece->bytes);
  return kSuccess;
}
int cuMemcpyAsync(Address target, Address source, std::size_t bytes, void* stream) {
  if (const int code = failing_in_context("cuMemcpyAsync")) return code;
  const StreamPointer where = stream_of(stream);
  if (!where) return kInvalidHandle;
  if (is_captured(stream)) {
    return give(stream, [=] { return driver().memory.copy(target, source, bytes); });
  }
  ++driver().copies;
  copy_later(where, target, source, bytes);
  const bool to_pageable = driver().synchronises && !driver().memory.find(target);
  if (to_pageable) driver().queues.wait_for(driver().queues.end_of(where));
  return kSuccess;
}
int cuMemGetAddressRange_v2(Address* begin, std::size_t* bytes, Address address) {
  if (const int code = failing_in_context("cuMemGetAddressRange")) return code;
  const auto piece = driver().memory.find(address);
  if (!piece || current()->device != piece->device) return kInvalidValue;
  *begin = piece->begin;
  *bytes = piece->bytes;
  return kSuccess;
}
int cuPointerGetAttributes(unsigned count, const int* attributes, void** values, Address address) {
  if (const int code = failing("cuPointerGetAttributes")) return code;
  const auto piece = driver().memory.find(address);
  for (unsigned i = 0; i < count; ++i) tell(attributes[i], values[i], piece ? &*piece : nullptr);
  return kSuccess;
}
int cuPointerGetAttribute(void* value, int attribute, Address address) {
  if (const int code = failing("cuPointerGetAttribute")) return code;
  constexpr int kDevicePointer = 3;
  const auto piece = driver().memory.find(address);
  if (!piece || attribute != kDevicePointer) return kInvalidValue;  // Numba wants nothing else
  *static_cast<Address*>(value) = address;
  return kSuccess;
}

// ---- mapped chunks ----------------------------------------------------------------------------

int cuMemAddressReserve(Address* address, std::size_t bytes, std::size_t, Address, std::uint64_t) {
  if (const int code = failing("cuMemAddressReserve")) return code;
  *address = driver().memory.reserve(bytes);
  return kSuccess;
}
int cuMemAddressFree(Address address, std::size_t) {
  if (const int code = failing("cuMemAddressFree")) return code;
  return driver().memory.unreserve(address) ? kSuccess : kInvalidValue;
}
int cuMemCreate(std::uint64_t* handle, std::size_t bytes, const void*, std::uint64_t) {
  if (const int code = failing("cuMemCreate")) return code;
  if (bytes % Memory::kPage != 0) return kInvalidValue;
  Driver& d = driver();
  auto chunk = std::make_shared<Chunk>(Chunk{std::make_shared<Pages>(bytes)});
  const std::lock_guard lock(d.mutex);
  *handle = ++d.handles;
  d.chunks[*handle] = std::move(chunk);
  return kSuccess;
}
int cuMemRelease(std::uint64_t handle) {
  if (const int code = failing("cuMemRelease")) return code;
  const std::lock_guard lock(driver().mutex);
  return driver().chunks.erase(handle) == 1 ? kSuccess : kInvalidValue;
}
int cuMemMap(Address address, std::size_t bytes, std::size_t offset, std::uint64_t handle,
             std::uint64_t) {
  if (const int code = failing("cuMemMap")) return code;
  Driver& d = driver();
  std::shared_ptr<Pages> pages;
  {
    const std::lock_guard lock(d.mutex);
    const auto found = d.chunks.find(handle);
    if (found != d.chunks.end()) pages = found->second->pages;
  }
  if (!pages || offset + bytes > pages->bytes()) return kInvalidValue;
  return d.memory.map(address, std::move(pages), offset, bytes) ? kSuccess : kInvalidValue;
}
int cuMemUnmap(Address address, std::size_t bytes) {
  if (const int code = failing("cuMemUnmap")) return code;
  return driver().memory.unmap(address, bytes) ? kSuccess : kInvalidValue;
}
int cuMemSetAccess(Address address, std::size_t bytes, const void*, std::size_t) {
  if (const int code = failing("cuMemSetAccess")) return code;
  return driver().memory.set_access(address, bytes) ? kSuccess : kInvalidValue;
}

// ---- between processes ------------------------------------------------------------------------

int cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  if (const int code = failing("cuIpcGetMemHandle")) return code;
  const auto piece = driver().memory.find(address);
  if (!piece || piece->kind != Kind::kAllocated) return kInvalidValue;
  const Exported exported{kMemoryMagic, getpid(),  piece->pages->file(),
                          piece->bytes, piece->id, piece->begin};
  std::memcpy(handle->bytes, &exported, sizeof exported);
  return kSuccess;
}
int cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned) {
  if (const int code = failing_in_context("cuIpcOpenMemHandle")) return code;
  synchronise_context();
  Exported exported{};
  std::memcpy(&exported, handle.bytes, sizeof exported);
  if (exported.magic != kMemoryMagic) return kInvalidValue;
  if (exported.process == getpid()) return kInvalidContext;
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  const ImportKey key{exported.process, exported.id, current()->id};
  for (const auto& [other, open] : d.imported) {
    const bool is_freed =
        other.process == key.process && other.id != key.id && open.overlaps(exported);
    if (is_freed) return kAlreadyMapped;
  }
  Imported& imported = d.imported[key];
  if (imported.times == 0) {
    const int file = file_of(exported);
    if (file < 0) return kInvalidHandle;
    imported = {d.memory.import(file, exported.bytes, current()->device, current())->begin, 0,
                exported.begin, exported.bytes};
  }
  ++imported.times;
  *address = imported.address + static_cast<Address>(d.shift.load());
  return kSuccess;
}
int cuIpcCloseMemHandle(Address address) {
  if (const int code = failing_in_context("cuIpcCloseMemHandle")) return code;
  synchronise_context();
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  for (auto& [from, imported] : d.imported) {
    if (imported.times == 0 || address - imported.address >= imported.bytes) continue;
    if (--imported.times == 0) d.memory.release(Kind::kImported, imported.address);
    return kSuccess;
  }
  return kInvalidValue;
}
int cuIpcGetEventHandle(IpcHandle* handle, void* event) {
  if (const int code = failing("cuIpcGetEventHandle")) return code;
  const auto exported_event = event_of(event);
  if (!exported_event || exported_event->file < 0) return kInvalidHandle;
  const Exported exported{kEventMagic, getpid(), exported_event->file, 0, 0, 0};
  std::memcpy(handle->bytes, &exported, sizeof exported);
  return kSuccess;
}
int cuIpcOpenEventHandle(void** event, IpcHandle handle) {
  if (const int code = failing_in_context("cuIpcOpenEventHandle")) return code;
  Exported exported{};
  std::memcpy(&exported, handle.bytes, sizeof exported);
  if (exported.magic != kEventMagic) return kInvalidValue;
  if (exported.process == getpid()) return kInvalidContext;
  const int file = file_of(exported);
  if (file < 0) return kInvalidHandle;
  *event = add_event(shared_event(file, false));
  return kSuccess;
}

}  // extern "C"
