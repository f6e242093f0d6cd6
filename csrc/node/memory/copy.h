// Copies between private and shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradred {

// Copies the few bytes of an announcement with a handful of instructions and without a function
// call.
inline void copy_few(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes == 8) {
    std::memcpy(target, source, 8);
  } else if (bytes >= 16) {  // steps of 16 bytes, then one that ends at the last byte
    for (std::size_t at = 0; at + 16 <= bytes; at += 16) std::memcpy(target + at, source + at, 16);
    std::memcpy(target + bytes - 16, source + bytes - 16, 16);
  } else if (bytes >= 8) {
    std::memcpy(target, source, 8);
    std::memcpy(target + bytes - 8, source + bytes - 8, 8);
  } else if (bytes >= 4) {
    std::memcpy(target, source, 4);
    std::memcpy(target + bytes - 4, source + bytes - 4, 4);
  } else {
    for (std::size_t at = 0; at < bytes; ++at) target[at] = source[at];
  }
}

// Copies into memory whose cache lines a peer has read and still holds. Does not fetch the lines
// first.
void copy_out(std::byte* target, const std::byte* source, std::size_t bytes);
// Copies into memory that no rank reads soon, past the caches. Other threads see the bytes after
// the next release operation, as with ordinary stores.
void copy_streaming(std::byte* target, const std::byte* source, std::size_t bytes);

using Copy = void (*)(std::byte* target, const std::byte* source, std::size_t bytes);

// copy_streaming(), or an ordinary copy.
Copy copy_of_results(bool streams);

// Flushes from all caches the lines that this core has read and another core will write next. To
// write lines that a distant core holds takes much longer than to fetch them from memory. Does
// nothing if the processor has no such instruction.
void hand_back(const std::byte* data, std::size_t bytes);

}  // namespace gradred
