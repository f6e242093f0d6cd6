#include "named/submission.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "named/tree_texts.h"

namespace gradred {
namespace {

constexpr std::array<std::string_view, 8> kNames = {"allreduce", "allgather",     "broadcast",
                                                    "alltoall",  "reducescatter", "barrier",
                                                    "refusal",   "join"};
constexpr std::array<std::string_view, 4> kCalls = {"", "gather", "scatter", "reduce"};

// Returns the index of the name in a table.
template <typename Value>
std::optional<Value> value_named(std::span<const std::string_view> names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Value>(found - names.begin());
}

// Whether the length of the first axis may differ from rank to rank.
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

// The shortest text that gives the factor exactly, such as "0.5".
std::string text(double factor) {
  std::array<char, 32> made;
  return {made.data(), std::to_chars(made.data(), made.data() + made.size(), factor).ptr};
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

// "(0, 2, 3, 1)"
std::string order_of(const Submission& one) {
  const bool as_they_stand = one.order == decltype(one.order){};
  std::string made = "(";
  for (std::size_t axis = 0; axis < shape_of(one).size(); ++axis) {
    made += (axis == 0 ? "" : ", ") + std::to_string(as_they_stand ? axis : one.order[axis]);
  }
  return made + ")";
}

// "float32 [2, 3]"; for a group "3 arrays, the first float32 [2, 3]".
std::string arrays_of(const Submission& one) {
  std::string made;
  if (one.arrays != 1) made = std::to_string(one.arrays) + " arrays, the first ";
  made += std::string(name_of(one.dtype)) + " " + text(shape_of(one));
  if (one.order != decltype(one.order){}) made += " with its axes in the order " + order_of(one);
  return made;
}

bool scales(const Submission& one) { return one.prescale != 1.0 || one.postscale != 1.0; }

std::string factors_of(const Submission& one) {
  return text(one.prescale) + " before and " + text(one.postscale) + " after";
}

// Describes how two groups differ whose first arrays are equal. Little more than a hash is known of
// their other arrays.
std::pair<std::string, std::string> others_of(const Submission& one, const Submission& other) {
  const std::size_t known = std::min<std::size_t>(one.arrays, Submission::kMostParts);
  for (std::size_t i = 1; i < known; ++i) {
    if (one.counts[i] == other.counts[i]) continue;
    const auto elements = [i](const Submission& of) {
      return std::to_string(of.counts[i]) + " elements in array " + std::to_string(i + 1) +
             " of its group";
    };
    return {elements(one), elements(other)};
  }
  std::string what = one.arrays > known ? "lengths, shapes" : "shapes";
  if (one.parts == 0 || other.parts == 0) what += ", types";
  what += " or orders of axes";
  return {arrays_of(one), "as many, the first like it, and others of other " + what};
}

// Compares the trees of two submissions, of which one may have none.
TreeDifference difference_of_structures(const Submitted& one, const Submitted& other) {
  TreeDifference found = difference_of_trees(one.structure, other.structure);
  if (one.what.structure == 0) found.one = "arrays without a tree";
  if (other.what.structure == 0) found.other = "arrays without a tree";
  return found;
}

}  // namespace

std::string describe(const RankNames& names, const Submission& one) {
  std::string made(name_of_call(one));
  if (one.arrays == 0) return made;
  made += " of " + arrays_of(one);
  if (one.on_device != 0) made += " on a GPU";
  if (reduces(one.kind)) made += " with " + std::string(name_of(one.op));
  if (reduces(one.kind) && scales(one)) made += ", times " + factors_of(one);
  if (one.kind == NamedKind::kBroadcast)
    made += " from root " + std::to_string(names.called(one.root));
  return made;
}

std::string_view name_of(NamedKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::optional<NamedKind> named_kind(std::string_view name) {
  return value_named<NamedKind>(kNames, name);
}

std::optional<NamedCall> named_call(std::string_view name) {
  return value_named<NamedCall>(kCalls, name);
}

std::string_view name_of_call(const Submission& one) {
  return one.call == NamedCall::kOfKind ? name_of(one.kind)
                                        : kCalls[static_cast<std::size_t>(one.call)];
}

std::uint32_t Submission::chunks() const {
  if (form != NamedForm::kInChunks || kind != NamedKind::kAllreduce || parts == 0) return 1;
  const std::uint64_t nearest = (bytes + kChunkBytes / 2) / kChunkBytes;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(nearest, 1));
}

Submission::Range Submission::chunk(std::uint32_t index) const {
  // elements: chunks begin at multiples, which vector units need for speed.
  constexpr std::uint64_t kAligned = 64;
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
          .wire = one.wire,
          .joins = one.kind == NamedKind::kAllreduce && one.parts != 0 && one.chunks() == 1 &&
                   one.form != NamedForm::kAlone};
}

bool Batching::add(const Submission& next, bool well) {
  const BatchKey key = BatchKey::of(next);
  const bool joins = well && key.suits(before_) && bytes_ + next.bytes <= most_bytes_;
  bytes_ = joins ? bytes_ + next.bytes : next.bytes;
  before_ = well ? key : BatchKey{};
  return joins;
}

bool alike(const Submission& one, const Submission& other) {
  if (one == other) return true;
  Submission same = one;
  same.priority = other.priority;
  same.form = other.form;
  return same == other;
}

std::string difference(const RankNames& names, const Submitted& submitted,
                       const Submitted& submitted_later) {
  const Submission &one = submitted.what, &other = submitted_later.what;
  const std::string &whose = submitted.whose, &whose_other = submitted_later.whose;
  const auto differs = [&](std::string_view what, const std::string& mine,
                           const std::string& theirs) {
    return "Mismatched " + std::string(what) + ": " + whose + " has " + mine + ", " + whose_other +
           " has " + theirs;
  };
  const auto mismatch = [&](std::string_view what, const std::string& mine,
                            const std::string& theirs) {
    return differs(what, mine, theirs) +
           ". All ranks have to submit the same by this name; calls of torch.distributed, which "
           "are named by their numbers, in the same order";
  };
  if (one.kind != other.kind || one.call != other.call) {
    for (const auto& [of, who] : {std::pair(one.kind, whose), std::pair(other.kind, whose_other)}) {
      if (of != NamedKind::kRefusal) continue;
      return who + " has refused its arguments, as its own error says";
    }
    return mismatch("operations", describe(names, one), describe(names, other));
  }
  if (one.structure != other.structure) {
    const auto [path, mine, theirs] = difference_of_structures(submitted, submitted_later);
    return differs("tree structures" + (path.empty() ? "" : " at " + path), mine, theirs) +
           ". All ranks have to pass trees of one structure";
  }
  if (one.dtype != other.dtype) {
    return mismatch("data types", std::string(name_of(one.dtype)),
                    std::string(name_of(other.dtype)));
  }
  if (one.on_device != other.on_device) {
    const auto where = [](const Submission& of) {
      return std::string(of.on_device != 0 ? "arrays in a GPU's memory" : "arrays in host memory");
    };
    return mismatch("CPU/GPU device selection", where(one), where(other));
  }
  if (!same_shapes(one, other)) {
    const std::string what = std::string(name_of_call(one)) + " tensor shapes";
    if (arrays_of(one) != arrays_of(other)) return mismatch(what, arrays_of(one), arrays_of(other));
    const auto [mine, theirs] = others_of(one, other);
    return mismatch(what, mine, theirs);
  }
  if (one.order != other.order) {
    const auto lies = [](const Submission& of) {
      return text(shape_of(of)) + " with its axes in the order " + order_of(of);
    };
    return mismatch(std::string(name_of_call(one)) + " memory layouts", lies(one), lies(other));
  }
  if (reduces(one.kind) && one.op != other.op) {
    return mismatch("reduction operation", std::string(name_of(one.op)),
                    std::string(name_of(other.op)));
  }
  if (reduces(one.kind) && (one.prescale != other.prescale || one.postscale != other.postscale)) {
    return mismatch("prescale and/or postscale factors", factors_of(one), factors_of(other));
  }
  if (one.wire != other.wire) {
    const auto form = [](const Submission& of) {
      return of.wire == Wire::kNone ? "none" : std::string(name_of(of.wire));
    };
    return mismatch("compressed wires", form(one), form(other));
  }
  if (one.kind == NamedKind::kBroadcast && one.root != other.root) {
    return mismatch("broadcast root ranks", std::to_string(names.called(one.root)),
                    std::to_string(names.called(other.root)));
  }
  return {};
}

std::string why_not_joined(const Submission& submission) {
  const std::string what(name_of_call(submission));
  if (submission.kind == NamedKind::kBarrier || submission.kind == NamedKind::kRefusal) return {};
  if (submission.kind != NamedKind::kAllreduce) {
    return what + " is not supported with join: a rank has joined, and has no array for it";
  }
  if (submission.op != Op::kSum && submission.op != Op::kAvg) {
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
