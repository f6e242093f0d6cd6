#include "named/tree_texts.h"

#include <algorithm>
#include <vector>

namespace gradred {
namespace {

// Two texts and a path fit a Board's problem. Bytes.
constexpr std::size_t kMostWhole = 110, kMostPart = 80, kMostPath = 70;

// An open container, and the last of its items that has begun.
struct Container {
  std::size_t begin = 0;
  std::size_t item = 0;   // where that begins
  std::size_t index = 0;  // of that item
};

// Reads a text and knows the open containers, the outermost first. Brackets and commas in quotes
// are parts of keys.
class TreeReader {
 public:
  explicit TreeReader(std::string_view text) : text_(text) {}

  void read_to(std::size_t end) {
    while (at_ < end) read();
  }
  // Reads to the end of the innermost container, and returns where that is.
  std::size_t read_container() {
    const std::size_t depth = open_.size();
    std::size_t end = at_;
    while (at_ < text_.size() && open_.size() >= depth) {
      end = at_;
      read();
    }
    return open_.size() < depth ? end : text_.size();
  }
  const std::vector<Container>& open() const { return open_; }

 private:
  void read() {
    const char one = text_[at_++];
    if (quote_ != 0) {
      if (one == '\\') ++at_;
      if (one == quote_) quote_ = 0;
    } else if (one == '\'' || one == '"') {
      quote_ = one;
    } else if (one == '(' || one == '[' || one == '{') {
      open_.push_back({at_, at_, 0});
    } else if ((one == ')' || one == ']' || one == '}') && open_.size() > 1) {
      open_.pop_back();
    } else if (one == ',') {
      open_.back().item = at_ + 1;
      ++open_.back().index;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  char quote_ = 0;
  std::vector<Container> open_ = {{}};
};

// "['a']" for "'a': Type(", ".field" for "field=Type(", and "[2]" for an item without a name.
std::string step_to(std::string_view text, const Container& around, std::size_t end) {
  const std::string_view its = text.substr(around.item, end - around.item);
  if (const auto colon = its.rfind(": "); colon != its.npos) {
    return "[" + std::string(its.substr(0, colon)) + "]";
  }
  if (const auto equals = its.find('='); equals != its.npos) {
    return "." + std::string(its.substr(0, equals));
  }
  return "[" + std::to_string(around.index) + "]";
}

std::string path_of(std::string_view text, const std::vector<Container>& open) {
  std::string made;
  for (std::size_t i = 1; i + 1 < open.size(); ++i) {
    made += step_to(text, open[i], open[i + 1].begin - 1);
  }
  if (made.size() <= kMostPath) return made.empty() ? "the root" : made;
  return "..." + made.substr(made.size() - kMostPath);
}

std::string part_of(std::string_view text) {
  return std::string(text.substr(0, kMostPart)) + (text.size() > kMostPart ? "..." : "");
}

// The items of the innermost container at `at`, from the one that is there on.
std::string items_from(std::string_view text, std::size_t at) {
  TreeReader reader(text);
  reader.read_to(at);
  const std::size_t begin = std::min(reader.open().back().item, at);
  return part_of(text.substr(begin, reader.read_container() - begin));
}

std::string known_part(std::string_view text) {
  return text.empty() ? "another tree" : part_of(text);
}

}  // namespace

TreeDifference difference_of_trees(std::string_view one, std::string_view other) {
  if (one.size() <= kMostWhole && other.size() <= kMostWhole && !one.empty() && !other.empty()) {
    return {"", std::string(one), std::string(other)};
  }
  const auto place = std::ranges::mismatch(one, other).in1 - one.begin();
  const auto at = static_cast<std::size_t>(place);
  // No whole text begins another one.
  if (at == 0 && (one.empty() || other.empty())) return {"", known_part(one), known_part(other)};
  if (at == one.size() || at == other.size()) {
    const std::string first = "the first " + std::to_string(at) + " bytes of their texts";
    return {"", "a tree", "another one, alike in " + first};
  }
  TreeReader reader(one);
  reader.read_to(at);
  return {path_of(one, reader.open()), items_from(one, at), items_from(other, at)};
}

}  // namespace gradred
