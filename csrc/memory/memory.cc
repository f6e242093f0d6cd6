#include "memory/memory.h"

#include <cstdint>
#include <exception>
#include <thread>

#include "base/clock.h"

namespace gradred {

Allocation::Allocation(Memory memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {
  if (bytes == 0) return;
  address_ = memory.is_host() ? new std::byte[bytes] : memory.device()->allocate(bytes);
}

void Allocation::release() noexcept {
  if (address_ == nullptr) return;
  if (memory_.is_host()) {
    delete[] address_;
  } else {
    memory_.device()->release(address_);
  }
}

std::shared_ptr<Stream> After::open_stream() const {
  if (device == nullptr) return nullptr;
  auto made = std::make_shared<Stream>(Memory(*device));
  for (const auto& event : events) made->wait_for(*event);
  return made;
}

bool Stream::finish() noexcept {
  try {
    while (!ready()) std::this_thread::yield();
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

bool Stream::settle() noexcept {
  constexpr std::uint64_t kMomentNs = 500'000'000;
  rest();  // no more work follows
  try {
    const std::uint64_t begin = now_ns();
    while (!ready()) {
      if (now_ns() - begin > kMomentNs) return false;
      std::this_thread::yield();
    }
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace gradred
