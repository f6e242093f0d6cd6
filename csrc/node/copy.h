// Copies between private and shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradred {

// For the few bytes of an announcement: no call, at most a handful of instructions.
inline void copy_few(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes == 8) {
    std::memcpy(target, source, 8);
  } else if (bytes >= 16) {  // whole steps, then one that ends at the end
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

// Into memory that a peer has read: its cache holds the lines. Does not fetch them first.
void copy_out(std::byte* target, const std::byte* source, std::size_t bytes);
// Into memory that nobody reads soon: bypasses the caches. Other threads see the bytes after the
// next release operation on them, as with any store.
void copy_streaming(std::byte* target, const std::byte* source, std::size_t bytes);

// Takes lines out of all caches that this core has read and another one will write: to write them
// while a far core holds them takes far longer than to fetch them from memory. Does nothing on
// processors that cannot.
void hand_back(const std::byte* data, std::size_t bytes);

}  // namespace gradred
