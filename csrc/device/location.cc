#include "device/location.h"

#include <optional>

#include "device/cuda_memory.h"
#include "device/driver/pointer_cache.h"
#include "device/readable.h"

namespace gradred::device {
namespace {

// Waits for a stream of the thread's own context. If the thread has none, the stream is taken as
// one of device 0's primary context. If that is not active either, no stream has been given any
// work.
void synchronise(const Driver& driver, StreamHandle stream) {
  std::optional<PrimaryContext> primary;
  if (driver.current() == nullptr) {
    try {
      primary.emplace(driver, 0);
    } catch (const DriverError& error) {
      if (error.code() != kInvalidContext) throw;
      return;
    }
  }
  const ScopedContext scope(driver, primary ? primary->get() : nullptr);
  driver.check(driver.call.StreamSynchronize(stream), "cuStreamSynchronize");
}

std::string in_hex(Address address) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (; address > 0; address /= 16) text.insert(text.begin(), kDigits[address % 16]);
  return "0x" + text;
}

PointerCache& cache_of(const Driver& driver) {
  static thread_local PointerCache cache(driver);  // there is only one driver in a process
  return cache;
}

}  // namespace

DeviceMemory* device_at(const void* pointer, std::size_t bytes, const Options& options) {
  const Driver* const driver = Driver::loaded(options.driver);
  if (driver == nullptr || bytes == 0) return nullptr;
  const PointerInfo found = cache_of(*driver).find(pointer);
  if (found.kind == Kind::kHost || !found.holds(reinterpret_cast<Address>(pointer), bytes)) {
    return nullptr;
  }
  return &CudaMemory::of(*driver, found, options);
}

Location locate(const void* pointer, std::size_t bytes, std::optional<std::uint64_t> stream,
                const Options& options) {
  const auto address = reinterpret_cast<Address>(pointer);
  const Driver* const driver = Driver::loaded(options.driver);
  const bool there = driver != nullptr && driver->initialised();
  if (there && bytes > 0) {
    const PointerInfo found = cache_of(*driver).find(pointer);
    if (found.kind != Kind::kHost) {
      const char* const kind = found.kind == Kind::kManaged ? "managed memory" : "the memory";
      const Address last = address + bytes - 1;
      if (!found.holds(address, bytes) && ask(*driver, last).kind == Kind::kHost) {
        return {Place::kNowhere, "memory of CUDA device " + std::to_string(found.device) +
                                     " that ends before it: address " + in_hex(address) + ", " +
                                     std::to_string(bytes) + " bytes"};
      }
      CudaMemory& memory = CudaMemory::of(*driver, found, options);
      return {Place::kDevice, std::string(kind) + " of " + memory.name(), &memory};
    }
    // This includes memory that the driver does not know: a device may write to all memory of a
    // process.
    if (stream.has_value()) synchronise(*driver, reinterpret_cast<StreamHandle>(*stream));
  }
  if (is_readable(pointer, bytes)) return {};
  const char* const says = there               ? "which the CUDA driver does not know either"
                           : driver != nullptr ? "and nobody has initialised the CUDA driver"
                                               : "and no CUDA driver is loaded";
  return {Place::kNowhere,
          "no memory of this process, " + std::string(says) + ": address " + in_hex(address)};
}

}  // namespace gradred::device
