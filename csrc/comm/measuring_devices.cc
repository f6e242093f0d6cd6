#include "comm/measuring_devices.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "by_mpi/mpi_operation.h"
#include "calls/device_plans.h"
#include "calls/plan_choice.h"
#include "comm/kept_device_plans.h"
#include "families/families.h"

namespace gradred {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::array<std::size_t, 3> kLengths = {std::size_t{64} << 10, std::size_t{1} << 20,
                                                 std::size_t{16} << 20};
constexpr int kTrials = 3;  // the fastest counts; an untimed one comes first

// Device arrays whose contents do not matter.
class Scratch {
 public:
  explicit Scratch(Memory memory)
      : memory_(memory), input_(memory, kLengths.back()), result_(memory, kLengths.back()) {
    order_ =
        std::make_shared<const CallOrder>(CallOrder{.before = std::make_shared<Stream>(memory)});
  }
  Call call(std::size_t bytes, const char* plan) const {
    Call made{.in = {input_.data(), memory_}, .out = {result_.data(), memory_}, .order = order_};
    made.count = bytes / sizeof(float);
    made.dtype = DType::kFloat32;
    made.plan = plan;
    return made;
  }

 private:
  Memory memory_;
  Allocation input_, result_;
  std::shared_ptr<const CallOrder> order_;
};

std::vector<std::string> worth_measuring(bool mpi_reads) {
  std::vector<std::string> plans;
  for (const Family* family : plan_families()) {
    if (!family->rivals_on_devices(mpi_reads)) continue;
    std::ranges::copy(family->plans(Collective::kAllreduce), std::back_inserter(plans));
  }
  return plans;
}

}  // namespace

void measure_device_plans(const Parts& parts, Memory memory, const RunCall& run) {
  // The maximum over all ranks: the slowest rank counts, and all ranks get the same answer to what
  // each of them can do.
  const auto on_all = [&](std::vector<double>& values) {
    Call call{.out = {values.data()}, .count = values.size(), .dtype = DType::kFloat64};
    call.op = Op::kMax;
    call.plan = "";
    run(call);
  };
  std::vector<double> cannot{mpi_reads_devices() ? 0.0 : 1.0};
  std::optional<Scratch> scratch;
  try {
    scratch.emplace(memory);
  } catch (const DeviceError&) {  // then no rank measures
  }
  cannot.push_back(scratch ? 0.0 : 1.0);
  on_all(cannot);
  DevicePlans& plans = parts.choice.device_plans;
  plans.be_tried();
  if (cannot[1] != 0) return;  // some rank has no memory to try them in
  const Call usual{.count = kLengths.back() / 4, .dtype = DType::kFloat32, .plan = ""};
  std::vector<DevicePlans::Candidate> candidates = {{"", parts.choice.plan_for(usual, true)->name}};
  for (const std::string& plan : worth_measuring(cannot[0] == 0)) {
    candidates.push_back({plan, plan});
  }
  DeviceFigures figures = device_place(parts, *memory.device(), candidates, run);
  if (recall_device_plans(parts, figures, candidates, kLengths, run)) {
    return plans.settle(std::move(candidates), std::move(figures.sizes));
  }
  std::vector<DevicePlans::Size>& sizes = figures.sizes;
  for (const std::size_t bytes : kLengths) {
    std::vector<double> seconds(candidates.size(), kNever);
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const Call call = scratch->call(bytes, candidates[i].plan.c_str());
      try {
        for (int turn = 0; turn <= kTrials; ++turn) {
          const std::uint64_t begin = now_ns();
          run(call);
          const double took = 1e-9 * static_cast<double>(now_ns() - begin);
          if (turn > 0) seconds[i] = std::min(seconds[i], took);
        }
      } catch (const UsageError&) {
        seconds[i] = kNever;          // no rank can use this plan
      } catch (const DeviceError&) {  // on this rank; the others receive the refusal
        seconds[i] = kNever;
      }
    }
    on_all(seconds);
    sizes.push_back({bytes, std::move(seconds)});
  }
  keep_device_plans(parts, figures);
  plans.settle(std::move(candidates), std::move(sizes));
}

}  // namespace gradred
