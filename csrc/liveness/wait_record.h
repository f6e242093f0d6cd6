// What a process waits for, in numbers: code compares these, and texts are made where they are
// shown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradred {

struct WaitRecord {
  enum class State : std::uint32_t {
    kOther,
    kFirstCall,     // that blocks, on a communicator: all ranks have to make it
    kDuplicate,     // in Dup
    kOnMpi,         // a non-blocking call that the MPI carries out
    kOnNode,        // an operation in shared memory
    kOverMessages,  // one over messages
    kShrink,
    kFinalize,
  };
  static constexpr std::size_t kMostRanks = 1024;  // more are not told

  State state = State::kOther;
  std::uint32_t ranks = 0;                               // of the communicator
  std::uint64_t operation = 0;                           // its number: kOnNode, kOverMessages
  std::uint64_t what = 0;                                // Signature::what: of these and kOnMpi
  std::array<std::uint64_t, kMostRanks / 64> missing{};  // a bit for each rank of the communicator

  void add_missing(std::size_t rank) {
    if (rank < kMostRanks) missing[rank / 64] |= std::uint64_t{1} << rank % 64;
  }
  // Whether it may be the same call on another rank.
  bool is_call_of(const WaitRecord& other) const {
    return state == other.state && ranks == other.ranks && what == other.what;
  }
};
static_assert(sizeof(WaitRecord) == 24 + 128);

}  // namespace gradred
