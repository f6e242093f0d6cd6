// Which way a long operation of a host goes, by what the rank that decides has measured. Where the
// cores are nobody tells, and ranks move from core to core.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/signature.h"

namespace gradred {

// The second of each: what peers read is written past the caches.
enum class Way : std::uint8_t { kChunks, kChunksPast, kReading, kReadingPast };

// Which way is the fastest one, by what the rank that decides has measured.
class FasterWay {
 public:
  // Whose times have nothing in common. In place ranks write lines that peers have read. `mapped`:
  // the arrays of the rank that decides lie in files that its peers map, as theirs do, mostly.
  struct Calls {
    Kind kind = Kind::kAllreduce;
    std::size_t bytes = 0;
    bool reads = false;  // whether the ways with reading come into question
    bool in_place = false, mapped = false;
  };
  Way choose(const Calls& calls);
  void took(const Calls& calls, Way way, std::uint64_t ns);

 private:
  struct Times {
    std::array<double, 4> ns{};  // of each way, for so many bytes; 0: not known
    unsigned operations = 0;

    std::size_t fastest(bool mapped) const;
  };
  static constexpr std::size_t kLeastPower = 16, kPowers = 24;  // the ends stand for all beyond
  Times& of(const Calls& calls);

  std::array<std::array<std::array<Times, kPowers>, 4>, 5> times_{};  // by the kind and the rest
};

}  // namespace gradred
