// The simulated driver's stream priorities, writes to and waits for host memory in streams, and
// stream capture.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "simulated_driver.h"

namespace simulated {
namespace {

constexpr int kNotSupported = 801;

constexpr int kGlobal = 0, kCaptureUnsupported = 900, kCaptureInvalidated = 901;
thread_local int capture_mode = kGlobal;
bool invalidated = false;  // some thread has called a forbidden function

struct Recorded {
  std::function<bool()> work, until;
};
using Graph = std::vector<Recorded>;

std::mutex captured_mutex;
std::map<void*, std::unique_ptr<Graph>> captured;  // by stream

// A word is 32 bits of pinned memory, which processes may share.
std::atomic<std::uint32_t>* word_at(Address address) {
  std::shared_ptr<void> keep;
  return reinterpret_cast<std::atomic<std::uint32_t>*>(reachable(address, 4, keep));
}

bool is_supported() { return std::getenv("SIMULATED_CUDA_NO_STREAM_VALUES") == nullptr; }

}  // namespace

bool record(void* stream, const std::function<bool()>& work, const std::function<bool()>& until) {
  const std::lock_guard lock(captured_mutex);
  const auto found = captured.find(stream);
  if (found == captured.end()) return false;
  found->second->push_back({work, until});
  return true;
}

// As in the driver, no thread may synchronise the context while a stream is captured. In global
// mode, more functions are forbidden.
int forbidden(std::string_view name) {
  // The driver also forbids other functions that allocate. They are allowed here, as tests make
  // arrays at any time.
  constexpr std::string_view kUnsafe[] = {"cuEventQuery", "cuStreamQuery", "cuStreamSynchronize",
                                          "cuMemHostAlloc", "cuMemFreeHost"};
  const bool unsafe =
      capture_mode == kGlobal && std::ranges::find(kUnsafe, name) != std::end(kUnsafe);
  if (!unsafe && name != "cuCtxSynchronize") return 0;
  const std::lock_guard lock(captured_mutex);
  if (captured.empty()) return 0;
  invalidated = true;
  return kCaptureUnsupported;
}

bool is_captured(void* stream) {
  const std::lock_guard lock(captured_mutex);
  return captured.contains(stream);
}

}  // namespace simulated

using namespace simulated;  // NOLINT: what follows is all of C

extern "C" {

int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  if (const int code = failing_in_context("cuStreamCreateWithPriority")) return code;
  *stream = add_stream((flags & 1) == 0, priority < 0);
  return kSuccess;
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (const int code = failing_in_context("cuCtxGetStreamPriorityRange")) return code;
  *least = 0;
  *greatest = -5;
  return kSuccess;
}
int cuStreamWriteValue32_v2(void* stream, Address address, std::uint32_t value, unsigned) {
  if (const int code = failing_in_context("cuStreamWriteValue32")) return code;
  if (!is_supported()) return kNotSupported;
  return give(stream, [=] {
    std::atomic<std::uint32_t>* const word = word_at(address);
    if (word == nullptr) return false;
    word->store(value, std::memory_order_release);
    return true;
  });
}
int cuStreamWaitValue32_v2(void* stream, Address address, std::uint32_t value, unsigned flags) {
  if (const int code = failing_in_context("cuStreamWaitValue32")) return code;
  if (!is_supported()) return kNotSupported;
  if (flags != 0) std::abort();  // no test has needed another comparison
  return give(
      stream, [] { return true; },
      [=] {
        const std::atomic<std::uint32_t>* const word = word_at(address);
        if (word == nullptr) return true;
        return static_cast<std::int32_t>(word->load(std::memory_order_acquire) - value) >= 0;
      });
}

int cuStreamBeginCapture_v2(void* stream, int) {
  const std::lock_guard lock(captured_mutex);
  invalidated = false;
  captured[stream] = std::make_unique<Graph>();
  return kSuccess;
}
// The graph lives as long as the process, and is its own executable graph.
int cuStreamEndCapture(void* stream, void** graph) {
  const std::lock_guard lock(captured_mutex);
  const auto found = captured.extract(stream);
  if (graph != nullptr) *graph = found.mapped().release();
  return invalidated ? kCaptureInvalidated : kSuccess;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, std::uint64_t) {
  return *executable = graph, kSuccess;
}
int cuGraphLaunch(void* executable, void* stream) {
  if (const int code = failing_in_context("cuGraphLaunch")) return code;
  for (const Recorded& one : *static_cast<const Graph*>(executable)) {
    if (const int code = give(stream, one.work, one.until)) return code;
  }
  return kSuccess;
}
int cuStreamIsCapturing(void* stream, int* status) {
  if (const int code = failing("cuStreamIsCapturing")) return code;
  const std::lock_guard lock(captured_mutex);
  *status = captured.contains(stream) ? 1 : 0;
  return kSuccess;
}

}  // extern "C"
