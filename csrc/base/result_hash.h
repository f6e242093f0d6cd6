// A hash that compares the results of two runs. It has no key and is no defence against forgery.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/signature.h"

namespace gradred {

// Hashes the bytes and their number, with four sums side by side to keep up with memory. Results
// that differ in one 64-bit word always have different hashes. Other different results collide with
// probability 2^-64.
inline std::uint64_t hash_of_result(const void* data, std::size_t bytes) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::array<std::uint64_t, 4> sums = {1, 2, 3, 4};
  const auto* const begin = static_cast<const unsigned char*>(data);
  const auto word_at = [&](std::size_t at, std::size_t length) {
    std::uint64_t word = 0;
    std::memcpy(&word, begin + at, length);
    return word;
  };
  std::size_t at = 0;
  for (; at + sums.size() * kWord <= bytes; at += sums.size() * kWord) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = mix(sums[i], word_at(at + i * kWord, kWord));
    }
  }
  for (; at + kWord <= bytes; at += kWord) sums[0] = mix(sums[0], word_at(at, kWord));
  if (at < bytes) sums[1] = mix(sums[1], word_at(at, bytes - at));
  std::uint64_t hash = bytes;
  for (const std::uint64_t sum : sums) hash = mix(hash, sum);
  return hash;
}

}  // namespace gradred
