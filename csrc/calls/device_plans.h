// Which plan is the fastest for calls on arrays in device memory, as all ranks of one communicator
// have measured it together.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "plan/device_figures.h"

namespace gradred {

class DevicePlans {
 public:
  // The value of GRADRED_DEVICE_PLAN that asks for a measurement.
  static constexpr std::string_view kMeasured = "measured";

  // A plan as calls name it; "" is the selector's choice. `label` is its name in texts.
  struct Candidate {
    std::string plan;
    std::string label;
  };
  using Candidates = std::vector<Candidate>;
  using Size = DeviceFigures::Size;

  // Whether the ranks have tried to measure. They try once; a rank may have lacked the memory for
  // it.
  bool tried() const { return tried_; }
  void be_tried() { tried_ = true; }
  bool measured() const { return !sizes_.empty(); }
  void settle(std::vector<Candidate> candidates, std::vector<Size> sizes);
  // The fastest plan at the nearest length; "" before settle().
  const char* plan_for(std::size_t bytes) const;
  std::vector<std::string> texts() const;  // what was measured, one text for each length

 private:
  std::size_t best(const Size& size) const;

  std::vector<Candidate> candidates_;
  std::vector<Size> sizes_;  // the shortest first
  bool tried_ = false;
};

}  // namespace gradred
