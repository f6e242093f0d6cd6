// By which way the data of a call went, for a profile.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradred {

enum class Went : std::uint8_t {
  kUnknown,
  kInLine,         // in what ranks announce
  kSlots,          // all at once, through shared memory
  kChunks,         // piece by piece, through shared memory
  kPeersMemory,    // read where peers have it
  kDevices,        // from device to device, where the arrays lie
  kDevicesCopied,  // from device to device, through memory that they share
  kMessages,
  kMpi,
  kLibrary,
  kNowhere,  // there is one rank
};
inline constexpr std::size_t kWays = 11;

// `staged`: arrays in a device's memory were copied to the host's and back.
inline const char* name_of(Went went, bool staged) {
  constexpr const char* kNames[kWays][2] = {
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
  return kNames[static_cast<std::size_t>(went)][staged ? 1 : 0];
}

}  // namespace gradred
