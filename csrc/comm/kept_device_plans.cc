// What calls on arrays in devices' memory take by each plan, from one process to the next.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/day.h"
#include "comm/communicator.h"
#include "comm/device_plans.h"
#include "memory/collectives.h"
#include "mpi/mpi.h"
#include "plan/device_figures.h"

namespace gradred {
namespace {

struct Where {
  std::array<char, 64> host{}, device{};
  DeviceMemory::Identity identity{};
};

// Processes number devices as they like: it is the model that counts.
Where own_place(DeviceMemory& memory) {
  Where mine;
  gethostname(mine.host.data(), mine.host.size() - 1);
  memory.model().copy(mine.device.data(), mine.device.size() - 1);
  mine.identity = memory.identity();
  return mine;
}

// Each rank's kind of device, and which ranks share one.
std::string devices_text(const std::vector<Where>& all) {
  std::string text;
  std::vector<DeviceMemory::Identity> seen;
  for (const Where& one : all) {
    const auto found = std::ranges::find(seen, one.identity);
    text += (text.empty() ? "" : ", ") + std::string(one.device.data()) + " " +
            std::to_string(found - seen.begin());
    if (found == seen.end()) seen.push_back(one.identity);
  }
  return text;
}

}  // namespace

// Without sizes; of rank 0, where the file is, complete.
DeviceFigures Communicator::device_place(DeviceMemory& memory,
                                         const DevicePlans::Candidates& candidates,
                                         WaitHook& hook) {
  const Where mine = own_place(memory);
  std::vector<Where> all(static_cast<std::size_t>(size_));
  Call gather{.kind = Kind::kAllgather, .send = &mine, .recv = all.data(), .count = sizeof mine};
  gather.plan = "";
  carry_out(gather, hook);
  DeviceFigures made;
  std::vector<std::string> hosts;
  for (const Where& one : all) hosts.emplace_back(one.host.data());
  std::string mpi = mpi::initialized() ? mpi::get().version() : "none";
  made.place = {mpi.substr(0, mpi.find('\n')), hosts_text(hosts), layout_text(topology())};
  std::string why;
  CollectiveLibrary* const library = memory.collectives(LibraryKind::kNccl, why);
  made.devices = devices_text(all) + "; " + (library != nullptr ? library->name() : "no NCCL");
  made.day = today();
  for (const auto& [plan, label] : candidates) made.plans.push_back(label);
  return made;
}

// Rank 0's file counts; all ranks have its figures then.
bool Communicator::recall_device_plans(DeviceFigures& figures,
                                       const DevicePlans::Candidates& candidates,
                                       std::span<const std::size_t> lengths, WaitHook& hook) {
  std::vector<double> values(lengths.size() * candidates.size());  // zeros: nothing is kept
  if (rank_ == 0 && settings_.tune && !settings_.figures.empty()) {
    const DeviceFigures kept = read_device_figures(settings_.figures, figures);
    std::vector<double> found;
    for (const DeviceFigures::Size& size : kept.sizes) {
      if (std::ranges::find(lengths, size.bytes) == lengths.end()) continue;
      found.insert(found.end(), size.seconds.begin(), size.seconds.end());
    }
    if (found.size() == values.size()) values = found;
  }
  Call share{.kind = Kind::kBcast, .recv = values.data(), .count = values.size() * sizeof(double)};
  share.plan = "";
  carry_out(share, hook);
  if (values.front() == 0) return false;
  auto next = values.begin();
  for (const std::size_t bytes : lengths) {
    const auto end = next + static_cast<std::ptrdiff_t>(candidates.size());
    figures.sizes.push_back({bytes, {next, end}});
    next = end;
  }
  return true;
}

void Communicator::keep_device_plans(const DeviceFigures& figures) const {
  if (rank_ == 0 && settings_.tune && !settings_.figures.empty()) {
    write_device_figures(settings_.figures, figures);
  }
}

}  // namespace gradred
