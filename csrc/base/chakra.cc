#include "base/chakra.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/kinds.h"
#include "base/signature.h"

namespace gradred {
namespace {

// The numbers of Chakra's fields, node types and kinds of collectives.
enum class Attribute : std::uint32_t {
  kName = 1,
  kInt64 = 9,
  kUInt64 = 13,
  kBool = 27,
  kText = 29
};
enum class Metadata : std::uint32_t { kVersion = 1, kAttribute = 2 };
enum class Node : std::uint32_t {
  kId = 1,
  kName,
  kType,
  kAfter = 5,
  kStart,
  kDuration,
  kAttribute = 10
};
constexpr std::uint64_t kWork = 4, kCollective = 7;

// Chakra's kind of collective; none for scans, which it lacks.
std::optional<std::uint64_t> kind_of(const Signature& signature) {
  const SignatureFields fields(signature);
  if (fields.kind >= kCalledKinds) return std::nullopt;
  const KindInfo& info = kKinds[fields.kind];
  const bool to_blocks = info.result == Part::kOwnBlock;
  if (info.reduced == Reduced::kAll) return to_blocks ? 8 : 0;
  if (info.reduced != Reduced::kNone) return std::nullopt;
  if (info.input == Part::kOwnBlock) return info.result == Part::kRoots ? 3 : 2;
  if (info.input == Part::kRoots) return to_blocks ? 4 : 5;
  return 6;
}

class Message {
 public:
  template <typename Field>
  void add(Field field, std::uint64_t number) {
    varint(static_cast<std::uint64_t>(field) << 3);
    varint(number);
  }
  template <typename Field>
  void add(Field field, std::string_view text) {
    varint(static_cast<std::uint64_t>(field) << 3 | 2);
    length_and(text);
  }
  template <typename Field, typename Value>
  void add_attribute(Field field, std::string_view name, Attribute kind, const Value& value) {
    Message made;
    made.add(Attribute::kName, name);
    made.add(kind, value);
    add(field, std::string_view(made.bytes_));
  }
  // As it is in a file.
  std::string behind_its_length() const {
    Message made;
    made.length_and(bytes_);
    return made.bytes_;
  }

 private:
  void varint(std::uint64_t number) {
    for (; number >= 128; number >>= 7) bytes_ += static_cast<char>(number | 128);
    bytes_ += static_cast<char>(number);
  }
  void length_and(std::string_view text) {
    varint(text.size());
    bytes_ += text;
  }

  std::string bytes_;
};

struct Interval {
  std::uint64_t id, start_ns, end_ns;
};

// The nodes of one rank.
class Nodes {
 public:
  void add(const ChakraOperation& operation) {
    const std::uint64_t start = operation.start_ns;
    if (last_id_ > 0 && start / 1000 > latest_ / 1000) {
      text_ += begun("the program", kWork, latest_, start).behind_its_length();
    }
    const auto kind = kind_of(operation.signature);
    Message node =
        begun(describe(operation.signature), kind ? kCollective : kWork, start, operation.end_ns);
    if (kind) {
      const std::uint64_t bytes = bytes_of(operation.signature);
      node.add_attribute(Node::kAttribute, "comm_type", Attribute::kInt64, *kind);
      node.add_attribute(Node::kAttribute, "comm_size", Attribute::kInt64, bytes);
    }
    node.add_attribute(Node::kAttribute, "path", Attribute::kText,
                       std::string_view(operation.path));
    text_ += node.behind_its_length();
  }
  const std::string& text() const { return text_; }

 private:
  // A node that follows the last ones that had ended before it.
  Message begun(std::string_view name, std::uint64_t type, std::uint64_t start_ns,
                std::uint64_t end_ns) {
    Message node;
    node.add(Node::kId, ++last_id_);
    node.add(Node::kName, name);
    node.add(Node::kType, type);
    std::uint64_t last_start = 0;
    for (const Interval& one : earlier_) {
      if (one.end_ns <= start_ns) last_start = std::max(last_start, one.start_ns);
    }
    std::erase_if(earlier_, [&](const Interval& one) {
      return one.end_ns <= last_start && one.start_ns < last_start;
    });
    for (const Interval& one : earlier_) {
      if (one.end_ns <= start_ns) node.add(Node::kAfter, one.id);
    }
    node.add(Node::kStart, start_ns / 1000);
    node.add(Node::kDuration, end_ns / 1000 - start_ns / 1000);
    node.add_attribute(Node::kAttribute, "is_cpu_op", Attribute::kBool, std::uint64_t{0});
    earlier_.push_back({last_id_, start_ns, end_ns});
    latest_ = std::max(latest_, end_ns);
    return node;
  }

  std::string text_;
  std::vector<Interval> earlier_;  // that a later node may follow
  std::uint64_t last_id_ = 0, latest_ = 0;
};

}  // namespace

std::string chakra_of(const std::vector<ChakraOperation>& operations, int rank) {
  Message metadata;
  metadata.add(Metadata::kVersion, std::string_view("1.0.0"));
  metadata.add_attribute(Metadata::kAttribute, "rank", Attribute::kInt64,
                         static_cast<std::uint64_t>(rank));
  Nodes nodes;
  for (const ChakraOperation& one : operations) nodes.add(one);
  return metadata.behind_its_length() + nodes.text();
}

}  // namespace gradred
