// What a process waits for, as numbers. Code compares these; texts are made only for display.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradred {

struct WaitRecord {
  enum class State : std::uint32_t {
    kOther,
    kFirstCall,     // blocking, on a communicator: all ranks must make it
    kDuplicate,     // in Dup
    kOnMpi,         // a non-blocking call that the MPI carries out
    kOnNode,        // an operation in shared memory
    kOverMessages,  // an operation over messages
    kShrink,
    kFinalize,
  };
  static constexpr std::array<std::string_view, 8> kStates = {
      // the names in `gradred ps --json`
      "other", "first call", "duplicate", "MPI", "shared memory", "messages", "shrink", "finalize"};
  static constexpr std::size_t kMostRanks = 1024;  // further ranks are not recorded

  State state = State::kOther;
  std::uint32_t ranks = 0;      // number of ranks of the communicator
  std::uint64_t operation = 0;  // its number, for kOnNode and kOverMessages
  std::uint64_t what = 0;       // Signature::what, for these and kOnMpi
  std::array<std::uint64_t, kMostRanks / 64> missing{};  // a bit for each rank of the communicator

  // Accepts unknown values, since the writer may be another version.
  static std::string_view name_of(State state) {
    const auto number = static_cast<std::size_t>(state);
    return kStates[number < kStates.size() ? number : 0];
  }
  void add_missing(std::size_t rank) {
    if (rank < kMostRanks) missing[rank / 64] |= std::uint64_t{1} << rank % 64;
  }
  // Whether `other` may be the same call on another rank.
  bool is_call_of(const WaitRecord& other) const {
    return state == other.state && ranks == other.ranks && what == other.what;
  }
};
static_assert(sizeof(WaitRecord) == 24 + 128);

}  // namespace gradred
