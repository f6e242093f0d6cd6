// What each algorithm costs on one topology: computed when it is first asked for, then kept, so
// that the choice for a new length takes no time.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "plan/model.h"
#include "plan/topology.h"
#include "schedule/algorithms.h"

namespace gradred {

class Shapes {
 public:
  Shapes(Topology topology, const Model& model) : topology_(std::move(topology)), model_(model) {}

  // UsageError where the algorithm does not serve so many ranks. Of a broadcast: from rank 0, which
  // stands for any root.
  const Shape& of(Collective collective, std::string_view algorithm, const Parameters& parameters);
  const Model& model() const { return model_; }

 private:
  const Topology topology_;
  const Model model_;
  std::mutex mutex_;
  std::map<std::string, Shape> known_;
};

// The algorithm with all parameters that shape it.
std::string text_of(Collective collective, std::string_view algorithm,
                    const Parameters& parameters);

}  // namespace gradred
