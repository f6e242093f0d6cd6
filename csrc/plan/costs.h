// What each algorithm costs on one topology: computed when it is first asked for, then kept, so
// that the choice for a new length takes no time.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "schedule/cost.h"

namespace gradred {

// Round figures of today's machines, where nothing has been measured, for messages by the MPI.
CostModel assumed_messages();

class Costs {
 public:
  Costs(Topology topology, const CostModel& model)
      : topology_(std::move(topology)), model_(model) {}

  // UsageError where the algorithm does not serve so many ranks. Of a broadcast: from rank 0, which
  // stands for any root.
  const Cost& of(Collective collective, std::string_view algorithm, const Parameters& parameters);
  const CostModel& model() const { return model_; }

 private:
  const Topology topology_;
  const CostModel model_;
  std::mutex mutex_;
  std::map<std::string, Cost> known_;
};

// The algorithm with all parameters that shape it.
std::string text_of(Collective collective, std::string_view algorithm,
                    const Parameters& parameters);

}  // namespace gradred
