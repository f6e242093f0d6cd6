// Which data path or transport carried the data of a call, for profiles.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradred {

enum class UsedTransport : std::uint8_t {
  kUnknown,
  kInLine,         // in the announcements
  kSlots,          // all at once, through shared memory
  kChunks,         // chunk by chunk, through shared memory
  kPeersMemory,    // read directly from peers' memory
  kDevices,        // from device to device, directly from the arrays
  kDevicesCopied,  // from device to device, through shared device memory
  kMessages,
  kMpi,
  kLibrary,
  kNowhere,  // there is only one rank
};
inline constexpr std::size_t kUsedTransports = 11;

// `staged`: arrays in device memory were copied to host memory and back.
inline const char* name_of(UsedTransport transport, bool staged) {
  constexpr const char* kNames[kUsedTransports][2] = {
      {"unknown", "host copies"},
      {"in line", "host copies, in line"},
      {"slots", "host copies, slots"},
      {"chunks", "host copies, chunks"},
      {"peers' memory", "host copies, peers' memory"},
      {"devices", "devices"},
      {"devices, copied", "devices, copied"},
      {"messages", "host copies, messages"},
      {"the MPI", "host copies, the MPI"},
      {"library", "library"},
      {"alone", "host copies, alone"},
  };
  return kNames[static_cast<std::size_t>(transport)][staged ? 1 : 0];
}

}  // namespace gradred
