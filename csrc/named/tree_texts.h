#pragma once

#include <string>
#include <string_view>

namespace gradred {

// Where two trees differ first, and what each has from there on.
struct TreeDifference {
  std::string path;  // "['params'][3].kernel"; empty if both texts are shown whole
  std::string one, other;
};

// Compares the texts of two different trees, such as "{'a': *, 'b': (*, None)}". A text may lack
// its end, or be empty if it is not known.
TreeDifference difference_of_trees(std::string_view one, std::string_view other);

}  // namespace gradred
