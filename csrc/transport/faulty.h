// A decorator that fails on purpose, at a coordinate: rank, operation, round. For tests.
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
  kCorrupt,  // one byte of each message of the round is inverted on the way
  kDie,      // the rank dies when the round begins
  kStop,     // the rank stops for good when the round begins, without dying
  kFail,     // the transport reports an error when the round begins
};

// Where nothing is given, every one is meant. Operations and rounds count from 0: an operation is
// one begin() of this rank, a round of it ends with each test() that returns true.
struct FaultSpec {
  std::optional<int> rank;
  std::optional<std::uint64_t> operation;
  std::optional<std::uint64_t> round;
  FaultKind kind = FaultKind::kDrop;
  std::uint32_t milliseconds = 0;  // kDelay only
};

// "rank:operation:round:kind[:milliseconds]", each of the first three a number or "*", for example
// "2:0:1:drop" or "*:*:0:delay:20". Throws UsageError that says what is wrong.
FaultSpec parse_fault(std::string_view text);

// What kDie and kStop strike: the process (SIGKILL, SIGSTOP), or, where ranks are threads, the
// channel, whose test() then throws PeerLost or returns false for ever.
enum class Victim : std::uint8_t { kProcess, kChannel };

// `inner` must outlive the channels.
class FaultyTransport : public Transport {
 public:
  FaultyTransport(Transport& inner, const FaultSpec& spec, Victim victim)
      : inner_(inner), spec_(spec), victim_(victim) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Channel> open(Memory memory) override;

 private:
  Transport& inner_;
  const FaultSpec spec_;
  const Victim victim_;
  std::atomic<std::uint64_t> operations_ = 0;
};

}  // namespace gradred
