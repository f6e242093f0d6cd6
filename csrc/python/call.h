// A call as Python holds it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "memory/memory.h"

namespace gradred {

inline Memory memory_of(DeviceMemory* device) {
  return device != nullptr ? Memory(*device) : Memory();
}

// Where the arrays of a call lie, if not all in host memory, and the streams in which the program
// works on them.
struct Placement {
  DeviceMemory* send = nullptr;  // null: the host's
  DeviceMemory* recv = nullptr;
  std::vector<std::pair<DeviceMemory*, std::uint64_t>> after{};

  // What comes after all that the streams have been given so far.
  std::shared_ptr<Stream> order() const {
    DeviceMemory* const device = recv != nullptr ? recv : send;
    if (device == nullptr) return nullptr;
    auto stream = std::make_shared<Stream>(Memory(*device));
    for (const auto& [memory, handle] : after) stream->wait_for(*memory, handle);
    return stream;
  }
};

struct PyCall {  // what it points to must outlive it
  Call call;
  std::string plan;
  Placement placement{};

  // What is to be carried out now.
  Call ordered() const {
    Call made = call;
    if (call.on_host()) return made;
    auto where = std::make_shared<Elsewhere>(*call.elsewhere);
    where->before = placement.order();
    made.elsewhere = std::move(where);
    return made;
  }
};

}  // namespace gradred
