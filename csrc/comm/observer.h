// Profile and trace of a communicator's calls: a decorator around its dispatch, which counts calls,
// times them, and records them.
#pragma once

#include <cstdint>
#include <memory>

#include "calls/call.h"
#include "calls/parts.h"
#include "engine/notices/registry.h"
#include "observe/observation.h"
#include "observe/profile.h"
#include "observe/result_log.h"

namespace gradred {

class Dispatch;

class Observer {
 public:
  Observer(const Parts& parts, Dispatch& dispatch) : parts_(parts), dispatch_(dispatch) {}
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // Whether to keep a profile: first this rank's wish, then rank 0's decision once the ranks have
  // exchanged their settings.
  void profile(bool wanted);
  // Where the results of the calls from now on are logged; nullptr: nowhere.
  void log_results(ResultLog* log);
  // From now on as those of `other`, under the name of its communicator.
  void log_results_as(const Observer& other) { results_ = other.results_; }
  // Once the communicator is set up, which began at `began_ns`. `trace` may be nullptr.
  void open(Trace* trace, std::uint64_t began_ns);
  bool keeps_profile() const { return profile_ != nullptr; }
  // Whether no call is observed.
  bool idle() const { return profile_ == nullptr && trace_ == nullptr && results_ == nullptr; }

  // A blocking call, carried out as if it were not observed (Dispatch). Most calls of a profile end
  // here, and each instruction counts. They are counted before they are made, so that nothing is
  // left to do after them.
  template <Mode mode>
  void run(const Call& call, WaitHook& hook);
  // For a call that starts; nullptr: it is not observed.
  std::shared_ptr<Observation> observation(const Call& call) const;

 private:
  void carry_out(const Call& call, WaitHook& hook, Mode mode);
  void run_timed(const Call& call, WaitHook& hook, Mode mode);
  void run_traced(const Call& call, WaitHook& hook, Mode mode);
  void note_way(const Call& call, Mode mode, ProfileRow& row) const;
  NodeGroup* node() const;  // nullptr: not all ranks share memory

  const Parts& parts_;
  Dispatch& dispatch_;
  std::shared_ptr<Profile> profile_;  // nullptr: none; this rank's wish until set-up
  Profile* quick_profile_ = nullptr;  // the same once it is set up
  Trace* trace_ = nullptr;            // for plans without schedules; nullptr: none
  std::uint32_t trace_line_ = 0;      // for blocking calls
  std::shared_ptr<LoggedResults> results_;
};

}  // namespace gradred
