// The order of calls that need no other order than that of the program's stream itself.
#pragma once

#include <cstdint>
#include <memory>

#include "device/driver/cuda_context.h"
#include "device/driver/driver_gate.h"
#include "device/streams/cuda_order.h"
#include "device/streams/cuda_streams.h"
#include "memory/stream_order.h"

namespace gradred::device {

// The context must be current.
std::shared_ptr<StreamOrder> open_direct_order(const CudaContext& context, DriverGate& gate,
                                               Orders& orders, CudaStreams& streams,
                                               std::uint64_t stream);

}  // namespace gradred::device
