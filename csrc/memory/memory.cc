#include "memory/memory.h"

#include <cstdint>
#include <exception>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "memory/stream_order.h"
#include "memory/workspace.h"

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

std::unique_ptr<Workspace> DeviceMemory::make_workspace(std::size_t, std::size_t, std::size_t,
                                                        std::string& why) {
  why = "peers cannot read the memory of " + name();
  return nullptr;
}

Workspace::Ticket Workspace::ticket_of(SharedPlace) {
  check(false, "a ticket for an array that no peer can reach");
  return {};
}

void Workspace::open_array(std::size_t, SharedPlace, const Ticket&) {
  throw DeviceError("this device opens no arrays of other processes");
}

std::byte* Workspace::array(std::size_t, SharedPlace) {
  check(false, "an array that nobody has opened");
  return nullptr;
}

CollectiveLibrary* DeviceMemory::collectives(LibraryKind, std::string& why) {
  why = "no library makes collective calls on the memory of " + name();
  return nullptr;
}

std::shared_ptr<StreamOrder> DeviceMemory::open_direct_order(std::uint64_t) {
  throw DeviceError(name() + " has no streams of a program's");
}

std::shared_ptr<StreamOrder> DeviceMemory::open_order(std::uint64_t, std::span<const std::size_t>,
                                                      std::string& why) {
  why = name() + " has no streams that wait for the host";
  return nullptr;
}

std::shared_ptr<const DeviceMoment> DeviceMemory::moment_of(std::uint64_t) {
  throw DeviceError(name() + " has no streams of a program's");
}

void DeviceMemory::precede(const DeviceMoment&, std::uint64_t) {
  throw DeviceError(name() + " has no streams of a program's");
}

std::shared_ptr<Stream> After::open_stream() const {
  if (device == nullptr) return nullptr;
  auto made = std::make_shared<Stream>(Memory(*device));
  for (const auto& moment : moments) made->wait_for(*moment);
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
