// What a process waits for, in numbers: code compares these, and texts are made where they are
// shown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

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
  static constexpr std::array<std::string_view, 8> kStates = {
      // as `gradred ps --json` has them
      "other", "first call", "duplicate", "MPI", "shared memory", "messages", "shrink", "finalize"};
  static constexpr std::size_t kMostRanks = 1024;  // more are not told

  State state = State::kOther;
  std::uint32_t ranks = 0;                               // of the communicator
  std::uint64_t operation = 0;                           // its number: kOnNode, kOverMessages
  std::uint64_t what = 0;                                // Signature::what: of these and kOnMpi
  std::array<std::uint64_t, kMostRanks / 64> missing{};  // a bit for each rank of the communicator

  // What others write may be of another version.
  static std::string_view name_of(State state) {
    const auto number = static_cast<std::size_t>(state);
    return kStates[number < kStates.size() ? number : 0];
  }
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
