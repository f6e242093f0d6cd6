// The interface to libraries that carry out whole collective calls on arrays in device memory:
// NCCL, or gradred's kernels that wait for each other.
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

// A call as such a library takes it. `count` as in MPI (see calls/call.h).
struct LibraryCall {
  Kind kind = Kind::kAllreduce;
  const void* input = nullptr;  // or the input's position in `result`, in place
  void* result = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;
  double factor = 1.0;  // of Op::kPremul
  int root = 0;
  // The program's stream in which the work is done. Not set: a stream of the group.
  std::optional<std::uint64_t> stream{};
};

// The library does not serve these ranks. The rank that finds out throws this, and so do the
// others.
class LibraryRefusal : public DeviceError {
  using DeviceError::DeviceError;
};

// The ranks of a communicator, as the library knows them. One thread at a time may use it. All
// functions throw DeviceError.
class LibraryGroup {
 public:
  using Ticket = std::array<std::byte, 128>;  // what ranks exchange to find each other

  virtual ~LibraryGroup() = default;
  virtual void connect(std::span<const Ticket> all) = 0;  // call once; `all`: by rank
  virtual bool is_connected() = 0;                        // to all peers; never blocks
  // Requires a connected group. Enqueues the work of a call on the device, in the same order on all
  // ranks. Never blocks. No other call may start before is_started().
  virtual void start(const LibraryCall& call) = 0;
  virtual bool is_started() = 0;
  // Whether all work started in the group's own stream is complete. Throws if it has failed.
  virtual bool ready() = 0;
  // Ends running work on this rank. Peers wait until they call it, too.
  virtual void abort() noexcept = 0;
};

class CollectiveLibrary {
 public:
  using Ticket = LibraryGroup::Ticket;

  virtual ~CollectiveLibrary() = default;
  virtual std::string name() const = 0;  // for messages: "NCCL 2.27.7"
  // Returns why the library cannot carry out such reductions, or nothing if it can. Loads what they
  // need.
  virtual std::optional<std::string> why_not(Op op, DType dtype) = 0;
  // Throws UsageError if work cannot be enqueued in this stream of the program in its present
  // state.
  virtual void check_stream(std::uint64_t) {}
  virtual bool shares_devices() const = 0;  // whether several ranks may use one device
  // Text for the case that they may not.
  virtual std::string one_rank_each() const { return name() + " takes one rank on each"; }
  // Creates this rank's part of a group, and the ticket that the others need to connect to it.
  virtual std::unique_ptr<LibraryGroup> open(int rank, int ranks, Ticket& ticket) = 0;
};

}  // namespace gradred
