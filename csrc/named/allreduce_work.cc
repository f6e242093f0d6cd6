// Allreduces of named arrays: one operation, a batch of them, or a chunk of a large one.
#include <algorithm>
#include <utility>

#include "base/copy_bytes.h"
#include "base/signature.h"
#include "named/work.h"
#include "reduce/reduce.h"

namespace gradred {
namespace {

// Memory for packed arrays, or for device arrays that are reduced in host memory.
class Vector {
 public:
  Vector() = default;
  Vector(std::size_t bytes, DeviceMemory* device, KeptVectors& kept) {
    if (device == nullptr) kept_ = kept.take(bytes);
    if (kept_ == nullptr) made_ = HostVector(bytes, device);
  }

  std::byte* data() const { return kept_ != nullptr ? kept_->data() : made_.data(); }
  explicit operator bool() const { return data() != nullptr; }
  void give_back(KeptVectors& kept) { kept.give_back(std::move(kept_)); }

 private:
  KeptVectors::Vector kept_;
  HostVector made_;
};

// Device arrays up to this size are packed into one host vector. Starting a copy takes a device
// some microseconds and each call on it needs several copies; packing pays up to about this size.
constexpr std::size_t kPackedFromDevice = std::size_t{256} << 10;

// Packs small arrays into one vector and reduces large ones in place. Or reduces a chunk of one
// operation.
class Allreduce final : public NamedWork {
 public:
  Allreduce(NamedPart first, KeptVectors& kept) : NamedWork(std::move(first)), kept_(kept) {}

 protected:
  bool start_phase(Communicator& comm, int phase) override {
    const Factors factors = factors_of(parts().front().submission(), comm.size());
    if (const NamedArray* const lone = lone_array(factors)) {
      add_name(parts().front());
      Call call = call_of(lone->count, lone->dtype, factors);
      call.out = lone->out;
      if (lone->in.data != lone->out.data) call.in = lone->in;
      start_call(comm, call);
      return true;
    }
    if (phase == 0) pack(comm, factors);
    if (!copies_.ready()) return false;
    for (std::size_t i = 0; i < buckets_.size(); ++i) start_bucket(comm, i, factors);
    return true;
  }
  bool inputs_are_there() override { return copies_.ready(); }

  void conclude(Communicator& comm) override {
    const Factors factors = factors_of(parts().front().submission(), comm.size());
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      const Bucket& bucket = buckets_[i];
      if (bucket.count == 0) continue;
      void* const data = vectors_[i] ? vectors_[i].data() : bucket.pieces.front().out.data;
      if (factors.after != 1.0) scale(data, bucket.count, bucket.dtype, factors.after, false);
      if (vectors_[i]) bucket.unpack(vectors_[i].data(), copies_);
    }
  }
  bool results_are_there() override {
    if (!copies_.ready()) return false;
    for (Vector& vector : vectors_) vector.give_back(kept_);
    return true;
  }

  bool settle() noexcept override { return copies_.settle() && NamedWork::settle(); }

 private:
  // The array of a single operation that is reduced where it is, without pieces: nullptr if there
  // is more to do.
  const NamedArray* lone_array(const Factors& factors) const {
    const NamedPart& part = parts().front();
    const bool is_plain = parts().size() == 1 && part.operation != nullptr &&
                          part.operation->arrays().size() == 1 && factors.before == 1.0 &&
                          factors.after == 1.0 && part.submission().on_device == 0 &&
                          part.submission().chunks() == 1;
    if (!is_plain) return nullptr;
    const NamedArray& lone = part.operation->arrays().front();
    return lone.count == 0 ? nullptr : &lone;
  }
  void add_name(const NamedPart& part) {
    names_ = mix(mix(names_, part.submission().rest), part.chunk);
  }
  Call call_of(std::size_t count, DType dtype, const Factors& factors) const {
    return {.kind = Kind::kAllreduce,
            .count = count,
            .dtype = dtype,
            .op = factors.op,
            .layout = names_ | 1,
            .wire = wire_of(dtype, factors),
            .mpi_request = false};
  }
  void pack(Communicator& comm, const Factors& factors) {
    std::vector<Piece> pieces;
    for (const NamedPart& part : parts()) {
      add_name(part);
      const std::size_t before = pieces.size();
      part.operation != nullptr ? add_arrays(*part.operation, pieces)
                                : add_zeros(part.submission(), pieces);
      if (part.submission().chunks() > 1) cut(pieces, part.submission().chunk(part.chunk));
      for (std::size_t i = before; i < pieces.size(); ++i) prepare(pieces[i], factors);
    }
    const bool on_device = parts().front().submission().on_device != 0;
    buckets_ = buckets_of(pieces, on_device ? kPackedFromDevice : packed_up_to(comm));
    const bool scales = factors.before != 1.0 || factors.after != 1.0;
    for (const Bucket& bucket : buckets_) {
      DeviceMemory* const device = bucket.device();
      vectors_.emplace_back();
      const bool on_host = scales || (factors.op == Op::kAvg && is_integer(bucket.dtype));
      if (!bucket.packed() && !(device != nullptr && on_host)) continue;
      vectors_.back() = Vector(bucket.bytes(), device, kept_);
      bucket.pack(vectors_.back().data(), copies_);
    }
  }
  void start_bucket(Communicator& comm, std::size_t index, const Factors& factors) {
    const Bucket& bucket = buckets_[index];
    if (bucket.count == 0) return;
    Call call = call_of(bucket.count, bucket.dtype, factors);
    if (const Vector& vector = vectors_[index]) {
      call.out.data = vector.data();
      if (bucket.device() != nullptr && factors.before != 1.0) {
        scale(call.out.data, bucket.count, bucket.dtype, factors.before, false);
      }
    } else {
      const Piece& piece = bucket.pieces.front();
      call.out = piece.out;
      call.order = order_after(piece.after);
      if (!piece.in_place()) call.in = piece.in;
    }
    start_call(comm, call);
  }
  Wire wire_of(DType dtype, const Factors& factors) const {
    const bool sums = factors.op == Op::kSum || factors.op == Op::kAvg;
    const bool carries = sums && dtype == DType::kFloat32;
    return carries ? parts().front().submission().wire : Wire::kNone;
  }
  static void add_arrays(NamedOperation& operation, std::vector<Piece>& pieces) {
    for (const NamedArray& array : operation.arrays()) {
      if (array.count == 0) continue;
      pieces.push_back({array.in, array.out, array.count, array.dtype, 0, array.after});
    }
  }
  // Adds pieces without memory; prepare() allocates it.
  static void add_zeros(const Submission& what, std::vector<Piece>& pieces) {
    for (std::size_t i = 0; i < what.parts; ++i) {
      if (what.counts[i] != 0) pieces.push_back({.count = what.counts[i], .dtype = what.dtype});
    }
  }
  // Keeps of the pieces, which all belong to one operation, only what lies in the range.
  static void cut(std::vector<Piece>& pieces, const Submission::Range& range) {
    std::vector<Piece> left;
    std::uint64_t begin = 0;
    for (const Piece& piece : pieces) {
      const std::uint64_t end = begin + piece.count;
      const std::uint64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
      if (from < to) left.push_back(part_of(piece, from - begin, to - from));
      begin = end;
    }
    pieces = std::move(left);
  }
  static Piece part_of(const Piece& piece, std::size_t begin, std::size_t count) {
    Piece part = piece;
    part.count = count;
    if (piece.out.data == nullptr) return part;
    part.in.data = static_cast<const std::byte*>(piece.in.data) + begin * size_of(piece.dtype);
    part.out.data = static_cast<std::byte*>(piece.out.data) + begin * size_of(piece.dtype);
    return part;
  }
  void prepare(Piece& piece, const Factors& factors) {
    if (piece.out.data == nullptr) {  // zeros of a rank that has joined
      zeros_.push_back(std::make_unique<std::byte[]>(piece.bytes()));
      piece.in.data = piece.out.data = zeros_.back().get();
    } else if (factors.before != 1.0 && piece.device() == nullptr) {
      if (!piece.in_place()) copy_bytes(piece.out.data, piece.in.data, piece.bytes());
      scale(piece.out.data, piece.count, piece.dtype, factors.before, false);
      piece.in.data = piece.out.data;
    }
  }

  KeptVectors& kept_;
  std::uint64_t names_ = 0;
  std::vector<Bucket> buckets_;
  // Of packed buckets, and of device arrays that are reduced in host memory.
  std::vector<Vector> vectors_;
  PieceCopies copies_;
  std::vector<std::unique_ptr<std::byte[]>> zeros_;
};

}  // namespace

std::unique_ptr<NamedWork> make_allreduce(NamedPart first, KeptVectors& kept) {
  return std::make_unique<Allreduce>(std::move(first), kept);
}

}  // namespace gradred
