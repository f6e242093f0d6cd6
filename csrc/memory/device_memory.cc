// The functions of DeviceMemory for a class of devices that lacks the feature.
#include "base/errors.h"
#include "memory/stream_order.h"
#include "memory/workspace.h"

namespace gradred {

std::unique_ptr<Workspace> DeviceMemory::make_workspace(std::size_t, std::size_t, std::size_t,
                                                        std::string& why) {
  why = "peers cannot read the memory of " + name();
  return nullptr;
}

CollectiveLibrary* DeviceMemory::collectives(std::string_view, std::string& why) {
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

std::shared_ptr<const RecordedEvent> DeviceMemory::event_of(std::uint64_t) {
  throw DeviceError(name() + " has no streams of a program's");
}

void DeviceMemory::precede(const RecordedEvent&, std::uint64_t) {
  throw DeviceError(name() + " has no streams of a program's");
}

}  // namespace gradred
