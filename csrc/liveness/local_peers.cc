#include "liveness/local_peers.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <string>

namespace gradred {
namespace {

struct LocalPeer {
  ProcessId process;
  StatusPage* page;
  bool of_this_job = false;
};

std::mutex peers_mutex;  // guards the list, whose entries never move, and the map

std::list<LocalPeer>& met() {
  static auto* list = new std::list<LocalPeer>;  // never freed, since MPI_Finalize still uses it
  return *list;
}

// The peers' processes, indexed by their rank in MPI_COMM_WORLD.
std::map<int, ProcessId>& by_world_rank() {
  static auto* map = new std::map<int, ProcessId>;
  return *map;
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

// Requires the lock.
LocalPeer* find(const ProcessId& process) {
  for (LocalPeer& peer : met()) {
    if (peer.process == process) return &peer;
  }
  return nullptr;
}

bool add(const ProcessId& process, bool of_this_job) {
  if (process == this_process()) return true;
  const std::lock_guard lock(peers_mutex);
  LocalPeer* known = find(process);
  if (known == nullptr) {
    if (!shows_token(process)) return false;
    known = &met().emplace_back(LocalPeer{process, map_page(process)});
  }
  known->of_this_job |= of_this_job;
  return true;
}

}  // namespace

bool meet(const ProcessId& process) { return add(process, false); }

bool meet_job_peer(const ProcessId& process) { return add(process, true); }

std::vector<ProcessId> job_peers() {
  const std::lock_guard lock(peers_mutex);
  std::vector<ProcessId> found;
  for (LocalPeer& peer : met()) {
    // The first attempt may have failed for lack of a free descriptor.
    if (peer.page == nullptr) peer.page = map_page(peer.process);
    if (peer.of_this_job && peer.page != nullptr) found.push_back(peer.process);
  }
  return found;
}

std::vector<ProcessId> met_peers() {
  const std::lock_guard lock(peers_mutex);
  std::vector<ProcessId> found;
  for (const LocalPeer& peer : met()) found.push_back(peer.process);
  return found;
}

std::optional<WaitRecord> waits_in(const ProcessId& process) {
  const std::lock_guard lock(peers_mutex);
  const LocalPeer* peer = find(process);
  ShownWait shown;
  if (peer == nullptr || peer->page == nullptr || !read_wait(*peer->page, shown)) {
    return std::nullopt;
  }
  return shown.since_ns != 0 ? std::optional(shown.wait) : std::nullopt;
}

const ShutdownRecord* shutdown_record_of(const ProcessId& process) {
  const std::lock_guard lock(peers_mutex);
  const LocalPeer* peer = find(process);
  if (peer == nullptr || peer->page == nullptr) return nullptr;
  ShutdownRecord& shutdown_record = peer->page->shutdown_record;
  const std::atomic_ref leaving(shutdown_record.leaving);
  return leaving.load(std::memory_order_acquire) != 0 ? &shutdown_record : nullptr;
}

Leaving leaving(const ProcessId& process) {
  const ShutdownRecord* shutdown_record = shutdown_record_of(process);
  return shutdown_record != nullptr ? static_cast<Leaving>(shutdown_record->leaving)
                                    : Leaving::kNot;
}

std::string doing_text(const ProcessId& process) {
  const std::string text = process_text(process) + ", " + state_text(process);
  const std::lock_guard lock(peers_mutex);
  const LocalPeer* peer = find(process);
  if (peer == nullptr || peer->page == nullptr) return text;
  const std::atomic_ref ended(peer->page->main_thread_has_ended);
  const bool goes_on = ended.load(std::memory_order_acquire) != 0 && is_alive(process);
  return text + (goes_on ? ", its main thread has ended and other threads go on" : "");
}

void remember_process(int world_rank, const ProcessId& process) {
  const std::lock_guard lock(peers_mutex);
  by_world_rank()[world_rank] = process;
}

LocalPeers known_processes(std::span<const int> world_ranks) {
  const std::lock_guard lock(peers_mutex);
  LocalPeers known;
  for (const int rank : world_ranks) {
    const auto found = by_world_rank().find(rank);
    if (found != by_world_rank().end()) known.emplace_back(rank, found->second);
  }
  return known;
}

}  // namespace gradred
