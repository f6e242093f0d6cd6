// Hashes of 64 bits.
#pragma once

#include <cstdint>

namespace gradred {

// For interned values, and for random numbers that depend on their arguments.
// The finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014): every input bit affects all output bits.
constexpr std::uint64_t mixed(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

// Adds a word to a hash of a sequence. mix() of base/signature.h takes a byte at a time.
constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 32;
}

}  // namespace gradred
