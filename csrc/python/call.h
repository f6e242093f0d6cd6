// A call as Python holds it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/staged.h"
#include "memory/memory.h"
#include "memory/order.h"

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
  std::optional<std::uint64_t> stream{};  // in whose order the call is; none: the host's

  // As DeviceMemory::open_order(), or for work that is given to the stream itself.
  std::shared_ptr<StreamOrder> stream_order(bool direct, std::span<const std::size_t> host_bytes,
                                            std::string& why) const {
    if (!stream || recv == nullptr) return nullptr;
    auto order =
        direct ? recv->open_direct_order(*stream) : recv->open_order(*stream, host_bytes, why);
    if (order == nullptr) return nullptr;
    order->follow(*recv, *stream);
    for (const auto& [memory, handle] : after) {
      if (memory != recv || handle != *stream) order->follow(*memory, handle);
    }
    return order;
  }

  // What comes after all that the streams have been given so far.
  std::shared_ptr<Stream> order() const {
    DeviceMemory* const device = recv != nullptr ? recv : send;
    if (device == nullptr) return nullptr;
    auto made = std::make_shared<Stream>(Memory(*device));
    for (const auto& [memory, handle] : after) made->wait_for(*memory, handle);
    if (stream) made->wait_for(*device, *stream);
    return made;
  }
};

struct PyCall {  // what it points to must outlive it
  Call call;
  std::string plan;
  Placement placement{};

  // What is to be carried out now. `why_waits`: the host, though a stream was given.
  Call ordered(Communicator& comm) const {
    std::string why;
    return ordered(comm, why);
  }
  Call ordered(Communicator& comm, std::string& why_waits) const {
    Call made = call;
    if (call.on_host()) return made;
    auto order = std::make_shared<CallOrder>();
    const bool direct = placement.stream && comm.dispatch().keeps_streams(call);
    const auto host_bytes = Staging::host_bytes(call, comm.rank(), comm.size());
    order->stream = placement.stream_order(direct, host_bytes, why_waits);
    order->before =
        order->stream ? std::make_shared<Stream>(order->stream->input()) : placement.order();
    made.order = std::move(order);
    return made;
  }
};

}  // namespace gradred
