#include "liveness/local_peer_search.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "liveness/local_peers.h"
#include "liveness/process.h"
#include "liveness/shown_ranks.h"

namespace gradred {
namespace {

std::atomic<std::size_t> expected_ranks{0};  // of the job on this host; 0: not set
std::atomic<bool> is_over{false};            // the last search has begun

std::size_t ranks_of_job_here(const AboutRank& mine) {
  const std::size_t expected = expected_ranks.load(std::memory_order_relaxed);
  return expected != 0 ? expected : static_cast<std::size_t>(mine.size);
}

}  // namespace

void expect_ranks_on_host(std::size_t ranks) {
  expected_ranks.store(ranks, std::memory_order_relaxed);
}

bool meet_local_peers() {
  const std::optional<AboutRank> mine = shown_by_this_process();
  // The ranks of the parent program have the same launcher as spawned ones.
  if (!mine || mine->spawned) return true;
  const std::size_t others = ranks_of_job_here(*mine) - 1;
  if (job_peers().size() >= others) return true;
  const std::int64_t job = launcher_of(mine->pid, true);
  if (job == 0) return true;
  for (const auto& [about, status_file] : shown_ranks()) {
    const bool alike = about.size == mine->size && !about.spawned && about.pid != mine->pid;
    if (!alike || launcher_of(about.pid, true) != job) continue;
    const auto process = process_numbered(about.pid, status_file);
    if (process && meet_job_peer(*process)) remember_process(about.rank, *process);
  }
  return job_peers().size() >= others;
}

void await_local_peers() {
  constexpr std::uint64_t kLongestWaitNs = 2'000'000'000;
  if (is_over.exchange(true)) return;
  const std::uint64_t deadline = now_ns() + kLongestWaitNs;
  while (!meet_local_peers() && now_ns() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace gradred
