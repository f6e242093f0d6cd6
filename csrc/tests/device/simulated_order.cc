// The simulated driver's streams of another urgency, what they write to host memory and wait for
// there, and capture.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>

#include "simulated_driver.h"

namespace simulated {
namespace {

constexpr int kNotSupported = 801;

std::mutex captured_mutex;
std::set<void*> captured;

// Words are pinned memory of 32 bits each, which processes may share.
std::atomic<std::uint32_t>* word_at(Address address) {
  std::shared_ptr<void> keep;
  return reinterpret_cast<std::atomic<std::uint32_t>*>(reachable(address, 4, keep));
}

bool is_supported() { return std::getenv("SIMULATED_CUDA_NO_STREAM_VALUES") == nullptr; }

}  // namespace
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
  if (flags != 0) std::abort();  // nobody has needed another comparison so far
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
  captured.insert(stream);
  return kSuccess;
}
int cuStreamEndCapture(void* stream, void**) {
  const std::lock_guard lock(captured_mutex);
  captured.erase(stream);
  return kSuccess;
}
int cuStreamIsCapturing(void* stream, int* status) {
  if (const int code = failing("cuStreamIsCapturing")) return code;
  const std::lock_guard lock(captured_mutex);
  *status = captured.contains(stream) ? 1 : 0;
  return kSuccess;
}

}  // extern "C"
