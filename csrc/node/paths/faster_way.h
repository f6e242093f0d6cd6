// Chooses the plan of a long operation from the times that one rank, the decider, has measured.
// Nothing reports how near the ranks' cores are to each other, and the kernel moves ranks from core
// to core.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/signature.h"

namespace gradred {

// The plans of a long operation. In the second one of each pair, ranks write what peers read past
// the caches. The last one is for allreduces of ranks that form cache groups.
enum class Way : std::uint8_t { kChunks, kChunksPast, kReading, kReadingPast, kChunksInGroups };

// Selects the plan that was fastest so far on the rank that decides.
class FasterWay {
 public:
  // The properties by which times are kept apart. `in_place` matters because ranks then write lines
  // that peers have read. `mapped`: the arrays of the deciding rank lie in files that peers can
  // map; this usually holds for the peers' arrays as well.
  struct Calls {
    Kind kind = Kind::kAllreduce;
    std::size_t bytes = 0;
    bool reads = false;  // whether peers' memory can be read for this call
    bool in_place = false, mapped = false;
    bool in_groups = false;  // whether the call may go by chunks in cache groups
  };
  Way choose(const Calls& calls);
  void took(const Calls& calls, Way way, std::uint64_t ns);

 private:
  struct Times {
    std::array<double, 5> ns{};  // time of each plan, scaled to a power of two of bytes; 0: unknown
    std::array<bool, 5> settled{};  // whether a call is known that did not follow another plan's
    unsigned operations = 0;
    Way trial = Way::kChunks;  // the plan that is tried
    unsigned left = 0;         // calls of the trial that are to come
    Way last = Way::kChunks;   // the plan of the last call
    unsigned in_a_row = 0;     // calls by that plan, without another plan between them
    double usual = 0;          // mean time of the fastest plan between trials; 0: unknown
    unsigned slow = 0;         // calls in a row that took it much longer
    bool anew = false;         // all are tried again, however long the data are

    std::size_t fastest(bool mapped) const;
    bool has_slowed(double now);
    void begin_anew(unsigned first);
    void begin_trial(Way way, std::size_t fastest, double far);
  };
  // Powers of two that are kept apart. The first and the last one also stand for all sizes beyond.
  static constexpr std::size_t kLeastPower = 16, kPowers = 24;
  Times& of(const Calls& calls);

  // Indexed by kind, then by in_groups, in_place and mapped, then by size.
  std::array<std::array<std::array<Times, kPowers>, 8>, kCalledKinds> times_{};
};

}  // namespace gradred
