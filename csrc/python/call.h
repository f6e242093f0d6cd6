// A call as Python holds it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/staged.h"
#include "memory/memory.h"
#include "memory/order.h"

namespace gradred {

inline Memory memory_of(DeviceMemory* device) {
  return device != nullptr ? Memory(*device) : Memory();
}

// What the program's streams had been given when a call was made, for all of its arrays.
class Moments {
 public:
  std::shared_ptr<const DeviceMoment> of(DeviceMemory& device, std::uint64_t stream) {
    auto& moment = taken_[{&device, stream}];
    if (moment == nullptr) moment = device.moment_of(stream);
    return moment;
  }

 private:
  std::map<std::pair<DeviceMemory*, std::uint64_t>, std::shared_ptr<const DeviceMoment>> taken_;
};

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

  // All that the streams have been given so far.
  After after_all(Moments& moments) const {
    After made{.device = recv != nullptr ? recv : send};
    if (made.device == nullptr) return made;
    const auto add = [&](DeviceMemory& device, std::uint64_t handle) {
      auto moment = moments.of(device, handle);
      if (std::ranges::find(made.moments, moment) == made.moments.end()) {
        made.moments.push_back(std::move(moment));
      }
    };
    for (const auto& [memory, handle] : after) add(*memory, handle);
    if (stream) add(*made.device, *stream);
    return made;
  }
  // One whose work comes after that. Null: the arrays are the host's.
  std::shared_ptr<Stream> open_stream() const {
    Moments moments;
    return after_all(moments).open_stream();
  }
};

struct PyCall {  // what it points to must outlive it
  Call call;
  std::string plan;
  Placement placement{};
};

// What is to be carried out now. `why_waits`: the host, though a stream was given.
inline Call ordered(const Call& call, const Placement& placement, Communicator& comm,
                    std::string& why_waits) {
  Call made = call;
  if (call.on_host()) return made;
  auto order = std::make_shared<CallOrder>();
  const bool direct = placement.stream && comm.dispatch().keeps_streams(call);
  const auto host_bytes = Staging::host_bytes(call, comm.rank(), comm.size());
  order->stream = placement.stream_order(direct, host_bytes, why_waits);
  order->before =
      order->stream ? std::make_shared<Stream>(order->stream->input()) : placement.open_stream();
  made.order = std::move(order);
  return made;
}
// The same; of what is thrown the peers hear. With a hook for who waits, else of a call that
// starts.
inline Call ordered_or_refused(const Call& call, const Placement& placement, Communicator& comm) {
  std::string why;
  try {
    return ordered(call, placement, comm, why);
  } catch (const Error& error) {
    comm.agreement().refuse_started(error.what());
    throw;
  }
}
inline Call ordered_or_refused(const Call& call, const Placement& placement, Communicator& comm,
                               WaitHook& hook) {
  std::string why;
  try {
    return ordered(call, placement, comm, why);
  } catch (const Error& error) {
    comm.agreement().refuse(error.what(), hook);
    throw;
  }
}

}  // namespace gradred
