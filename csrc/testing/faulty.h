// A decorator for tests that fails on purpose at a given rank, operation and round.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "transport/transport.h"

namespace gradred {

enum class FaultKind : std::uint8_t {
  kDrop,     // the round's messages are never sent
  kDelay,    // the round's messages are sent `milliseconds` late
  kCorrupt,  // one byte of each message of the round is inverted
  kDie,      // test() throws PeerLost from when the round begins
  kStop,     // test() returns false forever from when the round begins
  kFail,     // the transport reports an error when the round begins
};

// A field without a value matches all. Operations and rounds count from 0. An operation is one
// begin() of this rank; a round ends with each test() that returns true.
struct FaultSpec {
  std::optional<int> rank;
  std::optional<std::uint64_t> operation;
  std::optional<std::uint64_t> round;
  FaultKind kind = FaultKind::kDrop;
  std::uint32_t milliseconds = 0;  // kDelay only
};

// Parses "rank:operation:round:kind[:milliseconds]". Each of the first three is a number or "*".
// Examples: "2:0:1:drop", "*:*:0:delay:20". Throws UsageError.
FaultSpec parse_fault(std::string_view text);

// The caller keeps `inner` alive as long as the channels.
class FaultyTransport : public Transport {
 public:
  FaultyTransport(Transport& inner, const FaultSpec& spec) : inner_(inner), spec_(spec) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Channel> open(Memory memory) override;

 private:
  Transport& inner_;
  const FaultSpec spec_;
  std::atomic<std::uint64_t> operations_ = 0;
};

}  // namespace gradred
