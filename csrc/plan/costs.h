// What plans cost on one topology. What it takes to know that of an algorithm is computed when it
// is first asked for, then kept, so that the choice for a new length takes no time.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "plan/figures.h"
#include "schedule/cost.h"

namespace gradred {

class Costs {
 public:
  Costs(Topology topology, Figures figures)
      : topology_(std::move(topology)), figures_(std::move(figures)) {}

  // UsageError where the algorithm does not serve so many ranks. Of a broadcast: from rank 0, which
  // stands for any root.
  const Cost& of(Collective collective, std::string_view algorithm, const Parameters& parameters);
  // Likewise of what crosses between the groups of a hierarchical one.
  const Cost& of_crossing(Collective collective, const Parameters& parameters);
  const Figures& figures() const { return figures_; }

 private:
  const Topology topology_;
  const Figures figures_;
  std::mutex mutex_;
  std::map<std::string, Cost> known_;
};

// The algorithm with all parameters that shape it.
std::string text_of(Collective collective, std::string_view algorithm,
                    const Parameters& parameters);

}  // namespace gradred
