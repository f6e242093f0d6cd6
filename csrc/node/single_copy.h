// Long allreduces, allgathers and broadcasts for which each rank reads what it needs out of its
// peers' memory: one copy in place of two through shared memory, by the kernel, or where they lie
// if that is in files of arrays (peer_arrays.h).
//
// Through shared memory every byte goes from one core's cache to another's. Where the cores are far
// from each other that is what takes the time, and memory is nearer. Where they share a cache it is
// the other way round, but for what is only moved. So it is with results, which peers find either
// in this core's cache or in memory. Nobody tells where the cores are, and the kernel moves ranks
// between them: so one rank measures all ways and says with each operation which one it is.
#pragma once

#include <cstddef>
#include <cstdint>

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

  const std::byte* input;  // on a device: the words of its SharedPlaces
  std::byte* output;
  const std::uint64_t* beacon;   // something to try whether this process can be read
  std::uint64_t beacon_content;  // what stands there
  std::uint16_t says = 0;
  std::uint16_t input_fd = 0, output_fd = 0;  // of FilePlace
  std::uint32_t input_serial = 0, output_serial = 0;

  FilePlace input_place() const { return {input_fd, input_serial}; }
  FilePlace output_place() const { return {output_fd, output_serial}; }
};
static_assert(sizeof(ReadOffer) <= Announcement::kDataBytes);

// Reads another process's memory. 0, or the error number.
int read_process(std::int64_t pid, void* target, const void* source, std::size_t bytes) noexcept;
// Whether the kernel can read this memory of ours for a peer; false for that of some devices.
bool kernel_can_read(const void* memory, std::size_t bytes) noexcept;
// Where only a parent may look at its children (Yama): lets the user's other processes do so. Under
// `gradred run` each rank has a parent of its own.
void allow_reading() noexcept;

}  // namespace gradred
