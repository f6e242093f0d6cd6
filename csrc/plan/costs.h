// What the plans cost on one topology. The cost of an algorithm is computed when it is first asked
// for and then cached, so choosing a plan for a new length takes no time.
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

  // Throws UsageError if the algorithm does not serve this number of ranks. A broadcast is computed
  // for root 0, which stands for any root.
  const Cost& of(Kind collective, std::string_view algorithm, const Parameters& parameters);
  // The same for the part of a hierarchical algorithm that crosses between the groups.
  const Cost& of_crossing(Kind collective, const Parameters& parameters);
  const Figures& figures() const { return figures_; }

 private:
  const Topology topology_;
  const Figures figures_;
  std::mutex mutex_;
  std::map<std::string, Cost> known_;
};

// A text for the algorithm with all parameters that determine its schedules.
std::string text_of(Kind collective, std::string_view algorithm, const Parameters& parameters);

}  // namespace gradred
