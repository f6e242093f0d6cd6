#include "node/neighbours.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <list>
#include <mutex>
#include <string>

namespace gradred {
namespace {

struct Neighbour {
  ProcessId process;
  StatusPage* page;
};

std::mutex mutex;  // of the list; its entries stay where they are and never change

std::list<Neighbour>& met() {
  static auto* list = new std::list<Neighbour>;  // asked for as late as in MPI_Finalize
  return *list;
}

StatusPage* map_page(const ProcessId& process) {
  if (process.status_file < 0) return nullptr;
  const std::string path =
      "/proc/" + std::to_string(process.pid) + "/fd/" + std::to_string(process.status_file);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  StatusPage* page = map_status_file(file, false);
  close(file);
  return page;
}

const Neighbour* find(const ProcessId& process) {
  const std::lock_guard lock(mutex);
  for (const Neighbour& neighbour : met()) {
    if (neighbour.process == process) return &neighbour;
  }
  return nullptr;
}

}  // namespace

void meet(const ProcessId& process) {
  if (process.pid == getpid() || find(process) != nullptr) return;
  StatusPage* page = map_page(process);
  const std::lock_guard lock(mutex);
  met().push_back({process, page});
}

std::vector<ProcessId> neighbours() {
  const std::lock_guard lock(mutex);
  std::vector<ProcessId> all;
  for (const Neighbour& neighbour : met()) all.push_back(neighbour.process);
  return all;
}

const Farewell* farewell_of(const ProcessId& process) {
  const Neighbour* neighbour = find(process);
  if (neighbour == nullptr || neighbour->page == nullptr) return nullptr;
  Farewell& farewell = neighbour->page->farewell;
  const std::atomic_ref leaving(farewell.leaving);
  return leaving.load(std::memory_order_acquire) != 0 ? &farewell : nullptr;
}

Leaving leaving(const ProcessId& process) {
  const Farewell* farewell = farewell_of(process);
  return farewell != nullptr ? static_cast<Leaving>(farewell->leaving) : Leaving::kNot;
}

}  // namespace gradred
