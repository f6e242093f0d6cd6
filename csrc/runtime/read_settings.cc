#include "runtime/read_settings.h"

#include "base/clock.h"
#include "base/driver_calls.h"
#include "base/errors.h"
#include "calls/settings.h"
#include "liveness/local_peer_search.h"
#include "liveness/watchdog.h"
#include "runtime/destinations.h"
#include "runtime/environment.h"
#include "runtime/knobs.h"

namespace gradred {
namespace {

// From the last settings that asked for a profile. Never destroyed, as handlers at exit read it.
std::optional<std::string>& wanted_profile() {
  static auto* const wanted = new std::optional<std::string>;
  return *wanted;
}

// What metrics may name beside a file is a port or OpenTelemetry.
bool is_file(const std::string& metrics) {
  return !metrics.empty() && metrics.front() != ':' && metrics != "otel";
}

// Whether the last call has found all that this one would find. That is no matter of course if a
// knob names a file, whose folder may have ended since.
class LastRead {
 public:
  bool still_holds() {
    const bool same = is_environment(environment_);
    return valid_ && same && changes_ == knob_changes();
  }
  void begin() {
    valid_ = false;
    changes_ = knob_changes();
  }
  void end(const Settings& found) {
    valid_ = found.trace.empty() && found.profile_file.empty() && found.result_hash.empty() &&
             !is_file(found.metrics);
  }

 private:
  bool valid_ = false;
  std::uint64_t changes_ = 0;
  std::string environment_;
};

// Prometheus's exporters write %r for what is {rank} in other knobs.
std::string with_place_of_rank(std::string path) {
  if (const std::size_t at = path.find("%r"); at != std::string::npos) {
    path.replace(at, 2, "{rank}");
  }
  return path;
}

}  // namespace

void read_settings() {
  static auto* const last = new LastRead;
  if (last->still_holds()) return;
  last->begin();
  Settings found;
  found.ranks_on_host = ranks_on_host();
  found.rank_of_job = rank_of_job();
  found.figures = figures_folder();
  for (const KnobState& state : knob_states()) {
    if (state.knob->apply != nullptr) state.knob->apply(state.value, found);
  }
  if (found.clock_file != settings().clock_file) take_clock_steps_from(found.clock_file);
  if (!found.trace.empty()) found.trace = require_destination("trace", found.trace);
  if (!found.profile_file.empty()) {
    found.profile_file = require_destination("profile", found.profile_file);
  }
  if (!found.result_hash.empty()) {
    found.result_hash = require_destination("result_hash", found.result_hash);
  }
  if (is_file(found.metrics)) {
    if (found.metrics.find(':') != std::string::npos &&
        found.metrics.find('/') == std::string::npos) {
      throw UsageError("GRADRED_METRICS: '" + found.metrics +
                       "' is neither a file nor a port. Write ./ before a file's name, or :9400");
    }
    found.metrics = require_destination("metrics", with_place_of_rank(found.metrics));
  }
  wait_limits().warn = found.warn_ns;
  wait_limits().timeout = found.timeout_ns;
  expect_ranks_on_host(found.ranks_on_host);
  if (found.profile) wanted_profile() = found.profile_file;
  found.profile = found.profile || !found.metrics.empty();
  measure_driver_calls = found.profile || !found.trace.empty();
  settings() = found;
  last->end(found);
}

std::optional<std::string> profile_wanted() { return wanted_profile(); }

}  // namespace gradred
