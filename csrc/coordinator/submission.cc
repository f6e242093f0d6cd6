#include "coordinator/submission.h"

#include <algorithm>
#include <utility>

namespace gradred {
namespace {

constexpr std::array<std::string_view, 8> kNames = {"allreduce", "allgather",     "broadcast",
                                                    "alltoall",  "reducescatter", "barrier",
                                                    "refusal",   "join"};

// Whose first axis may differ from rank to rank.
bool gathers(NamedKind kind) {
  return kind == NamedKind::kAllgather || kind == NamedKind::kAlltoall;
}

bool reduces(NamedKind kind) {
  return kind == NamedKind::kAllreduce || kind == NamedKind::kReduceScatter;
}

std::span<const std::int64_t> shape_of(const Submission& one) {
  return std::span(one.shape).first(std::min<std::size_t>(one.axes, Submission::kMostAxes));
}

std::string text(std::span<const std::int64_t> shape) {
  std::string made = "[";
  for (const std::int64_t length : shape) {
    made += (made.size() > 1 ? ", " : "") + std::to_string(length);
  }
  return made + "]";
}

std::string text(double factor) {
  std::string made = std::to_string(factor);
  return made;
}

bool same_shapes(const Submission& one, const Submission& other) {
  if (one.axes != other.axes || one.rest != other.rest || one.arrays != other.arrays) return false;
  auto mine = shape_of(one), theirs = shape_of(other);
  if (gathers(one.kind) && !mine.empty()) {
    mine = mine.subspan(1);
    theirs = theirs.subspan(1);
  }
  return std::ranges::equal(mine, theirs);
}

std::string arrays_of(const Submission& one) {
  return one.arrays == 1 ? text(shape_of(one))
                         : std::to_string(one.arrays) + " arrays, the first " + text(shape_of(one));
}

}  // namespace

std::string_view name_of(NamedKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::optional<NamedKind> named_kind(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<NamedKind>(found - kNames.begin());
}

std::uint32_t Submission::chunks() const {
  if (in_chunks == 0 || kind != NamedKind::kAllreduce || parts == 0) return 1;
  const std::uint64_t nearest = (bytes + kChunkBytes / 2) / kChunkBytes;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(nearest, 1));
}

Submission::Range Submission::chunk(std::uint32_t index) const {
  constexpr std::uint64_t kAligned = 64;  // elements: where chunks begin, vector units like it
  const std::uint64_t count = bytes / size_of(dtype), number = chunks();
  const std::uint64_t share = (count + number - 1) / number;
  const std::uint64_t each = (share + kAligned - 1) / kAligned * kAligned;
  return {std::min(index * each, count), std::min((index + 1) * each, count)};
}

std::uint64_t Submission::bytes_of(std::uint32_t index) const {
  if (chunks() == 1) return bytes;
  const Range range = chunk(index);
  return (range.end - range.begin) * size_of(dtype);
}

BatchKey BatchKey::of(const Submission& one) {
  return {.prescale = one.prescale,
          .postscale = one.postscale,
          .op = one.op,
          .dtype = one.dtype,
          .on_device = one.on_device,
          .joins = one.kind == NamedKind::kAllreduce && one.parts != 0 && one.chunks() == 1};
}

bool Batching::add(const Submission& next, bool well) {
  const BatchKey key = BatchKey::of(next);
  const bool joins = well && key.suits(before_) && bytes_ + next.bytes <= most_bytes_;
  bytes_ = joins ? bytes_ + next.bytes : next.bytes;
  before_ = well ? key : BatchKey{};
  return joins;
}

bool alike(const Submission& one, const Submission& other) {
  Submission same = one;
  same.priority = other.priority;
  same.in_chunks = other.in_chunks;
  return same == other;
}

std::string difference(const Submission& one, std::string_view whose, const Submission& other,
                       std::string_view whose_other) {
  const auto told = [&](std::string_view what, const std::string& mine, const std::string& theirs) {
    return "Mismatched " + std::string(what) + ": " + std::string(whose) + " has " + mine + ", " +
           std::string(whose_other) + " has " + theirs +
           ". All ranks have to submit the same by this name";
  };
  if (one.kind != other.kind) {
    for (const auto& [of, who] : {std::pair(one.kind, whose), std::pair(other.kind, whose_other)}) {
      if (of != NamedKind::kRefusal) continue;
      return std::string(who) + " has refused its arguments, as its own error says";
    }
    return told("operations", std::string(name_of(one.kind)), std::string(name_of(other.kind)));
  }
  if (one.dtype != other.dtype) {
    return told("data types", std::string(name_of(one.dtype)), std::string(name_of(other.dtype)));
  }
  if (one.on_device != other.on_device) {
    const auto where = [](const Submission& of) {
      return std::string(of.on_device != 0 ? "arrays in a GPU's memory" : "arrays in host memory");
    };
    return told("CPU/GPU device selection", where(one), where(other));
  }
  if (!same_shapes(one, other)) {
    const std::string what = std::string(name_of(one.kind)) + " tensor shapes";
    if (arrays_of(one) == arrays_of(other)) {
      return told(what, "other arrays in its group", "the first like it");
    }
    return told(what, arrays_of(one), arrays_of(other));
  }
  if (reduces(one.kind) && one.op != other.op) {
    return told("reduction operation", std::string(name_of(one.op)),
                std::string(name_of(other.op)));
  }
  if (reduces(one.kind) && (one.prescale != other.prescale || one.postscale != other.postscale)) {
    const auto factors = [](const Submission& of) {
      return text(of.prescale) + " and " + text(of.postscale);
    };
    return told("prescale and/or postscale factors", factors(one), factors(other));
  }
  if (one.kind == NamedKind::kBroadcast && one.root != other.root) {
    return told("broadcast root ranks", std::to_string(one.root), std::to_string(other.root));
  }
  return {};
}

std::string why_not_joined(const Submission& submission) {
  const std::string what(name_of(submission.kind));
  if (submission.kind == NamedKind::kBarrier || submission.kind == NamedKind::kRefusal) return {};
  if (submission.kind != NamedKind::kAllreduce) {
    return what + " is not supported with join: a rank has joined, and has no array for it";
  }
  if (submission.op != Op::kSum) {
    return what + " with " + std::string(name_of(submission.op)) +
           " is not supported with join: a rank has joined, whose zeros would change the result";
  }
  if (submission.parts == 0) {
    return what + " of a group of more than " + std::to_string(Submission::kMostParts) +
           " arrays, or of several types, is not supported with join: a rank has joined";
  }
  return {};
}

}  // namespace gradred
