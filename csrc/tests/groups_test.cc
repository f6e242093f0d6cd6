// Collectives on groups of ranks, verified for every layout of few ranks.
#include "schedule/groups.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "schedule/algorithms.h"
#include "schedule/verify.h"

namespace gradred {
namespace {

using Layout = std::vector<int>;  // the group of each rank

// All layouts of `size` ranks. Groups are numbered by their first ranks.
void find_layouts(int size, const Layout& beginning, std::vector<Layout>& found) {
  if (static_cast<int>(beginning.size()) == size) return found.push_back(beginning);
  const int groups = beginning.empty() ? 0 : 1 + *std::ranges::max_element(beginning);
  for (int group = 0; group <= groups; ++group) {
    Layout longer = beginning;
    longer.push_back(group);
    find_layouts(size, longer, found);
  }
}

void prove(Kind collective, const Layout& layout, bool leaders, int root) {
  const Lanes lanes = Lanes::of(Topology::of(layout), leaders);
  std::vector<Schedule> all;
  for (int rank = 0; rank < lanes.size(); ++rank) {
    all.push_back(collective == Kind::kBcast ? bcast_on_groups(rank, lanes, root)
                                             : blocks_on_groups(collective, rank, lanes));
  }
  const Report report = verify(all);
  if (report.ok) return;
  std::string text =
      std::string(schedules_name(collective)) + (leaders ? ", leaders" : "") + ", groups";
  for (const int group : layout) text += " " + std::to_string(group);
  throw Error(text + ": " + describe(report.problem));
}

int prove_all() {
  std::vector<Layout> layouts;
  for (int size = 1; size <= 6; ++size) find_layouts(size, {}, layouts);
  for (const Layout& layout : layouts) {
    for (const bool leaders : {false, true}) {
      for (int root = 0; root < static_cast<int>(layout.size()); ++root) {
        prove(Kind::kBcast, layout, leaders, root);
      }
      prove(Kind::kReduceScatterBlock, layout, leaders, 0);
      prove(Kind::kAllgather, layout, leaders, 0);
    }
  }
  std::printf("%zu layouts passed\n", layouts.size());
  return layouts.size() == 1 + 2 + 5 + 15 + 52 + 203 ? 0 : 1;
}

}  // namespace
}  // namespace gradred

int main() {
  try {
    return gradred::prove_all();
  } catch (const gradred::Error& error) {
    std::printf("FAILED %s\n", error.what());
    return 1;
  }
}
