#include "comm/farewell.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/failure.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/communicator.h"
#include "comm/patience.h"
#include "node/neighbours.h"

namespace gradred {
namespace {

std::string last_words;

// What peers must know of this rank once it begins nothing any more.
Farewell farewell() {
  Farewell said;
  for (const auto& communicator : Communicator::alive()) {
    if (said.known == Farewell::kMost) break;
    said.begun[said.known++] = {communicator->key(), communicator->begun()};
  }
  const std::string reason = last_words.empty() ? "" : ": " + last_words;
  set_text(said.reason, "has left the program" + reason);
  return said;
}

bool any_failed() {
  return std::ranges::any_of(Communicator::alive(), [](const auto& communicator) {
    communicator->hear();
    return communicator->failed();
  });
}

enum class Others { kWaitedFor, kThere, kLost };

Others look_at(const std::vector<ProcessId>& processes) {
  Others seen = Others::kThere;
  for (const ProcessId& process : processes) {
    Leaving now = leaving(process);
    if (now == Leaving::kNot && !is_alive(process)) {
      now = leaving(process);  // its last word may lie between the two looks
      if (now == Leaving::kNot) return Others::kLost;
    }
    if (now == Leaving::kAtOnce) return Others::kLost;
    if (now == Leaving::kNot) seen = Others::kWaitedFor;
  }
  return seen;
}

// Their operations may still need what this process has to send.
bool await(const std::vector<ProcessId>& processes) {
  constexpr std::uint64_t kEveryNs = 2'000'000;
  std::uint64_t next_look = 0;
  const std::uint64_t begin = now_ns();
  Patience patience;
  bool posted = false;
  Others seen = Others::kWaitedFor;
  while (seen == Others::kWaitedFor) {
    patience.wait([&] {
      const std::uint64_t now = now_ns();
      if (now < next_look) return;
      next_look = now + kEveryNs;
      seen = any_failed() ? Others::kLost : look_at(processes);
      if (!posted && now - begin > 50 * kEveryNs) {
        posted = true;
        post_status(begin, "MPI_Finalize, until the other ranks of this host have come to it");
      }
    });
  }
  return seen == Others::kThere;
}

}  // namespace

void set_last_words(std::string_view reason) { last_words = reason; }

bool say_farewell() {
  const std::vector<ProcessId> others = neighbours();
  if (others.empty()) return !process_poisoned;
  engine().stop();
  const Farewell said = farewell();
  const auto sound = [] { return !process_poisoned && last_words.empty(); };
  if (sound()) {
    post_farewell(Leaving::kFinalizes, said);
    if (await(others)) return true;
  }
  post_farewell(Leaving::kAtOnce, said);
  return false;
}

}  // namespace gradred
