// The parts of one context, as workspaces and libraries get them (cuda_memory.h owns them).
#pragma once

namespace gradred::device {

class CudaContext;     // device/driver/cuda_context.h
class DriverGate;      // device/driver/driver_gate.h
class ExportedMemory;  // device/ipc/exported.h
class LoadedKernels;   // device/kernels/loaded_kernels.h
class EventPool;       // device/streams/event_pool.h
class Orders;          // device/streams/cuda_order.h
class PeersMemory;     // device/ipc/peers_memory.h
class PinnedMemory;    // device/streams/pinned_memory.h
class ProgramsMemory;  // device/ipc/programs_memory.h

struct CudaParts {
  const CudaContext& context;
  DriverGate& gate;
  LoadedKernels& kernels;
  PinnedMemory& host;
  EventPool& events;
  Orders& orders;
  ExportedMemory& exported;
  ProgramsMemory& programs;
  PeersMemory& of_peers;
};

}  // namespace gradred::device
