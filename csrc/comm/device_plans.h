// Which plan carries out calls on arrays in devices' memory the fastest, as all ranks of one
// communicator have measured it together.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "plan/device_figures.h"

namespace gradred {

class DevicePlans {
 public:
  // GRADRED_DEVICE_PLAN that asks for it.
  static constexpr std::string_view kMeasured = "measured";

  // Plans as calls name them: "" is the selector's choice; `label` is what people call it.
  struct Candidate {
    std::string plan;
    std::string label;
  };
  using Candidates = std::vector<Candidate>;
  using Size = DeviceFigures::Size;

  bool measured() const { return !sizes_.empty(); }
  void settle(std::vector<Candidate> candidates, std::vector<Size> sizes);
  // The fastest at the nearest length; "" before settle().
  const char* plan_for(std::size_t bytes) const;
  std::vector<std::string> texts() const;  // what was measured, a length after the other

 private:
  std::size_t best(const Size& size) const;

  std::vector<Candidate> candidates_;
  std::vector<Size> sizes_;  // the shortest first
};

}  // namespace gradred
