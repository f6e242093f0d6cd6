// Several arrays that one call reduces: small ones packed into one vector, large ones where they
// lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"
#include "comm/call.h"

namespace gradred {

class Communicator;

// The layout that ranks compare: the lengths of the axes, and their order from the slowest to the
// fastest.
std::uint64_t layout_hash(std::span<const std::int64_t> shape, std::span<const int> order);

struct Piece {
  InBuffer in{.data = nullptr};
  OutBuffer out{};  // of the same address: in place
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  std::uint64_t layout = 0;
  After after{};

  std::size_t bytes() const { return count * size_of(dtype); }
  bool in_place() const { return in.data == out.data; }
  DeviceMemory* device() const {  // null: the host's memory
    return in.memory.is_host() ? out.memory.device() : in.memory.device();
  }
};

// A vector in host memory of pieces that travel as one.
class HostVector {
 public:
  HostVector() = default;
  // For copies from and to the device; null: there is none.
  HostVector(std::size_t bytes, DeviceMemory* device);

  std::byte* data() const { return plain_ ? plain_.get() : for_device_.data(); }
  // A device may still write there.
  void keep_for_ever() noexcept {
    static_cast<void>(plain_.release());
    for_device_.keep_for_ever();
  }

 private:
  std::unique_ptr<std::byte[]> plain_;
  HostAllocation for_device_;
};

// Copies of many pieces between where they lie and a vector in the host's memory.
class PieceCopies {
 public:
  // In host memory at once; a device's begin with ready(), together, after all that comes before
  // any of them.
  void add(Memory memory, const CopyPart& part, const After& after);
  bool ready();            // waits for no device; the first on a device compiles what copies there
  void finish();           // blocks until all are done; throws where a device has failed
  bool settle() noexcept;  // for who gives up, as of a Stream; what has not begun will not

 private:
  // To and from one device.
  struct Batch {
    After after{};
    std::vector<CopyPart> parts{};
    std::shared_ptr<Stream> stream{};  // null: they have not begun

    bool ready();
  };

  std::vector<Batch> batches_;
};

// Neighbours of one type that travel as one vector.
struct Bucket {
  std::vector<Piece> pieces;
  DType dtype = DType::kUInt8;
  std::size_t count = 0;

  std::size_t bytes() const { return count * size_of(dtype); }
  bool packed() const { return pieces.size() > 1; }
  DeviceMemory* device() const;  // of the first piece that is not the host's; null: all are
  // Begin to copy to and from a vector in host memory, for device().
  void pack(std::byte* vector, PieceCopies& copies) const;
  void unpack(const std::byte* vector, PieceCopies& copies) const;
};

// What the pieces up to which packing pays have in bytes; all ranks find the same.
std::size_t packed_up_to(const Communicator& comm);

// Type by type, in the order in which the types come first. At least one bucket, so that a call
// without arrays is one that peers can compare.
std::vector<Bucket> buckets_of(std::span<const Piece> pieces, std::size_t packed_up_to);

// Whether no result shares memory with another, nor with an input that it does not replace.
bool apart(std::span<const Piece> pieces);

// Of the types and layouts of all.
std::uint64_t hash_of(std::span<const Piece> pieces);

}  // namespace gradred
