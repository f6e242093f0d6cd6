#include "comm/kept_device_plans.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/day.h"
#include "calls/member.h"
#include "calls/plan_choice.h"
#include "calls/settings.h"
#include "memory/collectives.h"
#include "mpi/mpi.h"
#include "plan/device_figures.h"

namespace gradred {
namespace {

struct Where {
  std::array<char, 64> host{}, device{};
  DeviceMemory::Identity identity{};
};

// Processes may number devices differently, so the model identifies the kind of device.
Where own_place(DeviceMemory& memory) {
  Where mine;
  gethostname(mine.host.data(), mine.host.size() - 1);
  memory.model().copy(mine.device.data(), mine.device.size() - 1);
  mine.identity = memory.identity();
  return mine;
}

// The kind of device of each rank, and which ranks share a device.
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

bool keeps_figures(const Parts& parts) {
  const Settings& settings = parts.settings;
  return parts.member.rank == 0 && settings.tune && !settings.figures.empty();
}

}  // namespace

DeviceFigures device_place(const Parts& parts, DeviceMemory& memory,
                           const DevicePlans::Candidates& candidates, const RunCall& run) {
  const Where mine = own_place(memory);
  std::vector<Where> all(static_cast<std::size_t>(parts.member.size));
  Call gather{.kind = Kind::kAllgather, .in = {&mine}, .out = {all.data()}, .count = sizeof mine};
  gather.plan = "";
  run(gather);
  DeviceFigures made;
  std::vector<std::string> hosts;
  for (const Where& one : all) hosts.emplace_back(one.host.data());
  std::string mpi = mpi::initialized() ? mpi::get().version() : "none";
  made.place = {mpi.substr(0, mpi.find('\n')), hosts_text(hosts),
                layout_text(parts.place.topology)};
  std::string why;
  CollectiveLibrary* const library = memory.collectives(LibraryKind::kNccl, why);
  made.devices = devices_text(all) + "; " + (library != nullptr ? library->name() : "no NCCL");
  made.day = today();
  for (const auto& [plan, label] : candidates) made.plans.push_back(label);
  return made;
}

bool recall_device_plans(const Parts& parts, DeviceFigures& figures,
                         const DevicePlans::Candidates& candidates,
                         std::span<const std::size_t> lengths, const RunCall& run) {
  std::vector<double> values(lengths.size() * candidates.size());  // zeros: the file has no figures
  if (keeps_figures(parts)) {
    const DeviceFigures kept = read_device_figures(parts.settings.figures, figures);
    std::vector<double> found;
    for (const DeviceFigures::Size& size : kept.sizes) {
      if (std::ranges::find(lengths, size.bytes) == lengths.end()) continue;
      found.insert(found.end(), size.seconds.begin(), size.seconds.end());
    }
    if (found.size() == values.size()) values = found;
  }
  Call share{.kind = Kind::kBcast, .out = {values.data()}, .count = values.size() * sizeof(double)};
  share.plan = "";
  run(share);
  if (values.front() == 0) return false;
  auto next = values.begin();
  for (const std::size_t bytes : lengths) {
    const auto end = next + static_cast<std::ptrdiff_t>(candidates.size());
    figures.sizes.push_back({bytes, {next, end}});
    next = end;
  }
  return true;
}

void keep_device_plans(const Parts& parts, const DeviceFigures& figures) {
  if (keeps_figures(parts)) write_device_figures(parts.settings.figures, figures);
}

}  // namespace gradred
