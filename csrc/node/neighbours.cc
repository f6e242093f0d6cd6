#include "node/neighbours.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <string>

namespace gradred {
namespace {

struct Neighbour {
  ProcessId process;
  StatusPage* page;
  bool companion = false;
};

std::mutex mutex;  // of the list; its entries stay where they are

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

// With the lock held.
Neighbour* find(const ProcessId& process) {
  for (Neighbour& neighbour : met()) {
    if (neighbour.process == process) return &neighbour;
  }
  return nullptr;
}

bool add(const ProcessId& process, bool companion) {
  if (process == this_process()) return true;
  const std::lock_guard lock(mutex);
  Neighbour* known = find(process);
  if (known == nullptr) {
    if (!shows_token(process)) return false;
    known = &met().emplace_back(Neighbour{process, map_page(process)});
  }
  known->companion |= companion;
  return true;
}

}  // namespace

bool meet(const ProcessId& process) { return add(process, false); }

bool meet_companion(const ProcessId& process) { return add(process, true); }

std::vector<ProcessId> companions() {
  const std::lock_guard lock(mutex);
  std::vector<ProcessId> found;
  for (Neighbour& neighbour : met()) {
    // There may have been no descriptor left to open it with.
    if (neighbour.page == nullptr) neighbour.page = map_page(neighbour.process);
    if (neighbour.companion && neighbour.page != nullptr) found.push_back(neighbour.process);
  }
  return found;
}

std::string waits_for(const ProcessId& process) {
  const std::lock_guard lock(mutex);
  const Neighbour* neighbour = find(process);
  if (neighbour == nullptr || neighbour->page == nullptr) return {};
  StatusPage& page = *neighbour->page;
  const std::atomic_ref sequence(page.sequence);
  for (int look = 0; look < 100; ++look) {  // its owner may have been stopped as it wrote
    const std::uint64_t before = sequence.load(std::memory_order_acquire);
    const std::uint64_t since_ns = page.since_ns;
    const std::string text(page.text, strnlen(page.text, sizeof page.text));
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool whole = before % 2 == 0 && sequence.load(std::memory_order_relaxed) == before;
    if (whole) return since_ns != 0 ? text : std::string();
    sched_yield();
  }
  return {};
}

const Farewell* farewell_of(const ProcessId& process) {
  const std::lock_guard lock(mutex);
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
