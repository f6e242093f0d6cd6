// What a rank publishes about a long operation, so that peers may read its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "node/memory/layout.h"
#include "node/memory/peer_arrays.h"

namespace gradred {

// Takes the place of the data in the announcement of a long operation.
struct ReadOffer {
  // This rank can read all peers, and the kernel can read this rank's buffers.
  static constexpr std::uint16_t kReadable = 1;
  static constexpr std::uint16_t kWanted = 2;  // from the decider: ranks read peers' memory
  // Its arrays are in device memory that peers' devices can read.
  static constexpr std::uint16_t kOnDevice = 4;
  // Peers have to open or close allocations of this rank first.
  static constexpr std::uint16_t kUnknown = 8;
  static constexpr std::uint16_t kPast = 16;      // from the decider: write past the caches
  static constexpr std::uint16_t kByTurns = 32;   // its device runs one process at a time
  static constexpr std::uint16_t kInGroups = 64;  // from the decider: by chunks in cache groups

  const std::byte* input;  // on a device: the word of the SharedPlace
  std::byte* output;
  const std::uint64_t* beacon;   // address of a number by which peers try to read this process
  std::uint64_t beacon_content;  // the number stored there
  std::uint16_t says = 0;
  std::uint16_t input_fd = 0, output_fd = 0;  // of FilePlace
  std::uint32_t input_serial = 0, output_serial = 0;

  static ReadOffer of(const Announcement& announcement) {
    ReadOffer offer;
    std::memcpy(&offer, announcement.data, sizeof offer);
    return offer;
  }
  FilePlace input_place() const { return {input_fd, input_serial}; }
  FilePlace output_place() const { return {output_fd, output_serial}; }
};
static_assert(sizeof(ReadOffer) <= Announcement::kDataBytes);

}  // namespace gradred
