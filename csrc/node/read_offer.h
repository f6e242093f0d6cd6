#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "node/layout.h"
#include "node/peer_arrays.h"

namespace gradred {

// What a rank says of a long operation, in the place of the data.
struct ReadOffer {
  static constexpr std::uint16_t kReadable = 1;  // it can read all peers, and they its buffers
  static constexpr std::uint16_t kWanted = 2;    // who decides: this operation is to be done so
  static constexpr std::uint16_t kOnDevice = 4;  // its arrays are, and peers' devices may read them
  static constexpr std::uint16_t kUnknown = 8;   // of these, some that peers have not opened yet
  static constexpr std::uint16_t kPast = 16;     // who decides: past the caches
  static constexpr std::uint16_t kByTurns = 32;  // its device lets one process compute at a time

  const std::byte* input;  // on a device: the words of its SharedPlaces
  std::byte* output;
  const std::uint64_t* beacon;   // something to try whether this process can be read
  std::uint64_t beacon_content;  // what stands there
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
