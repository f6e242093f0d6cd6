// What carries out collective calls on arrays in devices' memory by itself (a library such as NCCL,
// or kernels that wait for each other): what the calls' side needs to know of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/errors.h"
#include "base/signature.h"
#include "base/types.h"

namespace gradred {

// What there may be of them on a device.
enum class LibraryKind : std::uint8_t { kNccl, kOneShot, kTwoShot };

// A call as such a library takes it. `count` is MPI's, as in comm/call.h.
struct LibraryCall {
  Kind kind = Kind::kAllreduce;
  const void* input = nullptr;  // or where it is in the result
  void* result = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;
  double factor = 1.0;  // of Op::kPremul
  int root = 0;
  // A stream of the program's, in which the work is done; none: one of the group's own.
  std::optional<std::uint64_t> stream{};
};

// The library does not serve these ranks: so it says on one of them, and on others that one did.
class LibraryRefusal : public DeviceError {
  using DeviceError::DeviceError;
};

// The ranks of a communicator, as the library knows them. One thread at a time. All throw
// DeviceError.
class LibraryGroup {
 public:
  using Ticket = std::array<std::byte, 128>;  // by which ranks find each other

  virtual ~LibraryGroup() = default;
  virtual void connect(std::span<const Ticket> all) = 0;  // once, to the others, by rank
  virtual bool is_connected() = 0;                        // to all peers; never blocks
  // Once connected: gives the device the work of a call, in the same order on all ranks; none of
  // these blocks, and no other call is started before is_started().
  virtual void start(const LibraryCall& call) = 0;
  virtual bool is_started() = 0;
  // What was started in the group's own stream is done. Also says what has failed meanwhile.
  virtual bool ready() = 0;
  // Ends what is under way, here; peers wait until they do the same.
  virtual void abort() noexcept = 0;
};

class CollectiveLibrary {
 public:
  using Ticket = LibraryGroup::Ticket;

  virtual ~CollectiveLibrary() = default;
  virtual std::string name() const = 0;  // for messages: "NCCL 2.27.7"
  // Why it cannot serve such reductions; none: it can, and has loaded what it takes.
  virtual std::optional<std::string> why_not(Op op, DType dtype) = 0;
  // Throws UsageError: it cannot give its work to this stream of the program's as it is now.
  virtual void check_stream(std::uint64_t) {}
  virtual bool shares_devices() const = 0;  // takes several ranks on one
  // Where it does not, in words.
  virtual std::string one_rank_each() const { return name() + " takes one rank on each"; }
  // This rank's part in a group, and what the others need to connect to it.
  virtual std::unique_ptr<LibraryGroup> open(int rank, int ranks, Ticket& ticket) = 0;
};

}  // namespace gradred
