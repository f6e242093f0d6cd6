// A collective call that Python code holds, and where its arrays lie.
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
#include "families/devices/staged.h"
#include "memory/memory.h"
#include "memory/stream_order.h"

namespace gradred {

class PyOperation;  // python/py_operation.h

inline Memory memory_of(DeviceMemory* device) {
  return device != nullptr ? Memory(*device) : Memory();
}

// Points in the program's streams at the time of a call, shared by all of the call's arrays.
class RecordedEvents {
 public:
  std::shared_ptr<const RecordedEvent> of(DeviceMemory& device, std::uint64_t stream) {
    auto& event = taken_[{&device, stream}];
    if (event == nullptr) event = device.event_of(stream);
    return event;
  }

 private:
  std::map<std::pair<DeviceMemory*, std::uint64_t>, std::shared_ptr<const RecordedEvent>> taken_;
};

// Where the arrays of a call lie if some are in device memory, and the streams in which the program
// uses them.
struct Placement {
  DeviceMemory* send = nullptr;  // nullptr: host memory
  DeviceMemory* recv = nullptr;
  std::vector<std::pair<DeviceMemory*, std::uint64_t>> after{};
  std::optional<std::uint64_t> stream{};  // whose order the call follows; none: the host's

  // See DeviceMemory::open_order(). `direct`: the work itself is enqueued in the stream.
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

  // The work that the streams have received so far.
  After after_all(RecordedEvents& events) const {
    After made{.device = recv != nullptr ? recv : send};
    if (made.device == nullptr) return made;
    const auto add = [&](DeviceMemory& device, std::uint64_t handle) {
      auto event = events.of(device, handle);
      if (std::ranges::find(made.events, event) == made.events.end()) {
        made.events.push_back(std::move(event));
      }
    };
    for (const auto& [memory, handle] : after) add(*memory, handle);
    if (stream) add(*made.device, *stream);
    return made;
  }
  // A stream whose work starts after that. Returns nullptr if all arrays are in host memory.
  std::shared_ptr<Stream> open_stream() const {
    RecordedEvents events;
    return after_all(events).open_stream();
  }
};

struct PyCall {  // its pointers must stay valid as long as it
  Call call;
  std::string plan;
  Placement placement{};
};

// The call with the order in which it has to run. If a stream was given but the host has to wait,
// `why_waits` receives the reason.
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
// Same as ordered(). On an error, the peers' calls fail as well. The overload with a hook is for
// blocking calls, the other one for nonblocking calls.
inline Call ordered_or_refused(const Call& call, const Placement& placement, Communicator& comm) {
  std::string why;
  try {
    return ordered(call, placement, comm, why);
  } catch (const Error& error) {
    comm.refuse_started(error.what());
    throw;
  }
}
inline Call ordered_or_refused(const Call& call, const Placement& placement, Communicator& comm,
                               WaitHook& hook) {
  std::string why;
  try {
    return ordered(call, placement, comm, why);
  } catch (const Error& error) {
    comm.refuse(error.what(), hook);
    throw;
  }
}

// Starts a call on `comm`; warns if the MPI carries it out.
std::shared_ptr<PyOperation> start_call(Communicator& comm, const PyCall& call, bool mpi_request);

}  // namespace gradred
