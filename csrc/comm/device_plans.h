// Which plan carries out calls on arrays in devices' memory the fastest, as all ranks of one
// communicator have measured it together.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "plan/device_figures.h"

namespace gradred {

class Communicator;

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

  // Whether the ranks have come to measure them: once, and perhaps some lack the memory for it.
  bool tried() const { return tried_; }
  void be_tried() { tried_ = true; }
  bool measured() const { return !sizes_.empty(); }
  void settle(std::vector<Candidate> candidates, std::vector<Size> sizes);
  // The fastest at the nearest length; "" before settle().
  const char* plan_for(std::size_t bytes) const;
  std::vector<std::string> texts() const;  // what was measured, a length after the other

 private:
  std::size_t best(const Size& size) const;

  std::vector<Candidate> candidates_;
  std::vector<Size> sizes_;  // the shortest first
  bool tried_ = false;
};

// Blocking and collective, at the first call on arrays in devices' memory: the communicator's
// choice gets what this measures, or what rank 0 has kept.
void measure_device_plans(Communicator& comm, Memory memory, WaitHook& hook);

}  // namespace gradred
