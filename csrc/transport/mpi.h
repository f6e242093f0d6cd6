// Messages by MPI point-to-point on a communicator of gradred's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mpi/mpi.h"
#include "transport/transport.h"

namespace gradred {

// The tags of one communicator among those that share a duplicate: `id` in the high bits, the
// operation in the low ones, as many as the MPI's largest tag leaves.
struct TagSpace {
  int id = 0;
  int operation_bits = 8;

  static TagSpace make(int id, int largest_tag);
  static int most_ids(int largest_tag);
  std::uint32_t window() const { return 1U << operation_bits; }  // operations in flight at most
  int tag(std::uint32_t operation) const {
    return (id << operation_bits) | static_cast<int>(operation & (window() - 1));
  }
};

class MpiTransport final : public Transport {
 public:
  // Borrows the communicator, whose errors must return.
  MpiTransport(mpi::Handle comm, int rank, int size, TagSpace tags)
      : comm_(comm), rank_(rank), size_(size), tags_(tags) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Channel> open() override;

  mpi::Handle comm() const { return comm_; }
  const TagSpace& tags() const { return tags_; }
  // Lets the MPI below make progress on whatever it has in hand.
  void progress() const;

 private:
  mpi::Handle comm_;
  int rank_;
  int size_;
  TagSpace tags_;
};

}  // namespace gradred
