// Several arrays that one call reduces. Small arrays are packed into one vector; large ones are
// reduced where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "calls/call.h"

namespace gradred {

class Communicator;

struct Piece {
  InBuffer in{.data = nullptr};
  OutBuffer out{};  // same address as the input: in place
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  std::uint64_t layout = 0;  // ArrayLayout::hash
  After after{};

  std::size_t bytes() const { return count * size_of(dtype); }
  bool in_place() const { return in.data == out.data; }
  DeviceMemory* device() const {  // nullptr: host memory
    return in.memory.is_host() ? out.memory.device() : in.memory.device();
  }
};

// A vector in host memory for pieces that are packed together.
class HostVector {
 public:
  HostVector() = default;
  // `device`: the device of copies to and from the vector; nullptr: none.
  HostVector(std::size_t bytes, DeviceMemory* device);

  std::byte* data() const { return plain_ ? plain_.get() : for_device_.data(); }
  // Never frees the memory: a device may still write there.
  void keep_for_ever() noexcept {
    static_cast<void>(plain_.release());
    for_device_.keep_for_ever();
  }

 private:
  std::unique_ptr<std::byte[]> plain_;
  HostAllocation for_device_;
};

// Copies of many pieces between their arrays and a vector in host memory.
class PieceCopies {
 public:
  // Copies in host memory are done at once. The copies of a device begin together, in ready(),
  // after all work that comes before any of them.
  void add(Memory memory, const CopyPart& part, const After& after);
  bool ready();   // never waits for a device; the first call for a device compiles its copy kernel
  void finish();  // blocks until all are done; throws where a device has failed
  // For callers that give up, as for a Stream; copies that have not begun are dropped.
  bool settle() noexcept;

 private:
  // Copies to and from one device.
  struct Batch {
    After after{};
    std::vector<CopyPart> parts{};
    std::shared_ptr<Stream> stream{};  // nullptr: the copies have not begun

    bool ready();
  };

  std::vector<Batch> batches_;
};

// Neighbouring pieces of one type that are packed into one vector.
struct Bucket {
  std::vector<Piece> pieces;
  DType dtype = DType::kUInt8;
  std::size_t count = 0;

  std::size_t bytes() const { return count * size_of(dtype); }
  bool packed() const { return pieces.size() > 1; }
  DeviceMemory* device() const;  // of the first piece in device memory; nullptr: none is
  // Begin to copy the pieces to, and from, a vector in host memory that was made for device().
  void pack(std::byte* vector, PieceCopies& copies) const;
  void unpack(const std::byte* vector, PieceCopies& copies) const;
};

// The largest size in bytes for which packing pays; the same on all ranks.
std::size_t packed_up_to(const Communicator& comm);

// Buckets type by type, in the order in which the types first appear. There is at least one bucket,
// so that the peers can compare a call without arrays.
std::vector<Bucket> buckets_of(std::span<const Piece> pieces, std::size_t packed_up_to);

// A result that shares memory with another result, or with an input that it does not replace.
struct SharedMemory {
  std::size_t result, other;  // indices of pieces
  bool both_results;
};
// Returns nullopt if there is none. Two results come before a result and an input.
std::optional<SharedMemory> shared_memory_of(std::span<const Piece> pieces);

// A hash of the types and layouts of all pieces.
std::uint64_t hash_of(std::span<const Piece> pieces);

}  // namespace gradred
