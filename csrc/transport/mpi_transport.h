// Messages by MPI point-to-point operations on a communicator of gradred.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mpi/mpi.h"
#include "transport/transport.h"

namespace gradred {

int largest_tag();  // that this MPI allows

// The tags of one communicator among those that share a duplicate. A tag has `id` in its high bits,
// followed by the operation and its slice, in as many bits as the MPI's largest tag allows.
struct TagSpace {
  int id = 0;
  int bits = 8;  // for operation and slice together
  int slice_bits = 2;

  static TagSpace make(int id, int largest_tag);
  static int most_ids(int largest_tag);
  unsigned most_slices() const { return 1U << slice_bits; }
  // The largest number of operations in flight. One more value is reserved for notices.
  std::uint64_t window() const { return (1U << (bits - slice_bits)) - 1; }
  // The tag of the first slice. Those of the other slices follow.
  int tag(std::uint64_t operation) const { return at(operation % window()); }
  int notices() const { return at(window()); }

 private:
  int at(std::uint64_t place) const { return id << bits | static_cast<int>(place) << slice_bits; }
};

class MpiTransport final : public Transport {
 public:
  // Borrows the communicator, whose error handler must be MPI_ERRORS_RETURN.
  MpiTransport(mpi::Handle comm, int rank, int size, TagSpace tags)
      : comm_(comm), rank_(rank), size_(size), tags_(tags) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Channel> open(Memory memory) override;

  mpi::Handle comm() const { return comm_; }
  const TagSpace& tags() const { return tags_; }

  // From now on messages to ranks on other hosts are cut into pieces of `bytes` bytes; 0: not cut.
  // All ranks must pass the same values while no message is in flight.
  void cut_messages(const std::vector<int>& host_of, std::size_t bytes);
  void cut_messages_as(const MpiTransport& other);
  std::size_t piece_bytes(int peer) const;

 private:
  // MPI counts are ints, and Open MPI's transports prefer less than 2 GiB.
  static constexpr std::size_t kLargestMessage = std::size_t{1} << 30;

  mpi::Handle comm_;
  int rank_;
  int size_;
  TagSpace tags_;
  std::vector<int> host_of_;
  std::size_t piece_bytes_ = 0;
};

}  // namespace gradred
