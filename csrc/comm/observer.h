// Profile and trace of a communicator's calls: a decorator around its dispatch, which counts calls,
// times them, compares them with the MPI's own and writes them down.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/call.h"
#include "comm/observation.h"
#include "comm/profile.h"
#include "comm/registry.h"
#include "comm/result_log.h"

namespace gradred {

class Communicator;
class SetUpCalls;

class Observer {
 public:
  explicit Observer(Communicator& comm) : comm_(comm) {}
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // Whether to keep a profile: this rank's wish, and what rank 0 has decided once the ranks have
  // told each other.
  void profile(bool wanted);
  // Where the results of the calls from now on are written down; null: nowhere.
  void log_results(ResultLog* log);
  // Collective, in the set-up that began then. `trace` may be null.
  void set_up(SetUpCalls& calls, Trace* trace, std::uint64_t began_ns);
  // Local: the same without an MPI to compare with.
  void open(Trace* trace, std::uint64_t began_ns);
  bool keeps_profile() const { return profile_ != nullptr; }
  // Whether nobody observes the calls.
  bool idle() const { return profile_ == nullptr && trace_ == nullptr && results_ == nullptr; }

  // A blocking call, on the path that it takes unobserved (Dispatch). Most calls of
  // a profile end here, and each instruction counts. They are counted before they are made, so that
  // nothing is left to do.
  template <Mode mode>
  void run(const Call& call, WaitHook& hook);
  // Of a call that starts; null: nobody observes it.
  std::shared_ptr<Observation> observation(const Call& call) const;

 private:
  void carry_out(const Call& call, WaitHook& hook, Mode mode);
  void run_timed(const Call& call, WaitHook& hook, Mode mode);
  void run_traced(const Call& call, WaitHook& hook, Mode mode);
  void note_way(const Call& call, Mode mode, ProfileRow& row) const;
  bool may_compare(const Call& call, Mode mode) const;
  void compare_with_mpi(const Call& call, ProfileRow& row, WaitHook& hook);
  NodeGroup* node() const;  // null: not all ranks share memory

  Communicator& comm_;
  std::shared_ptr<Profile> profile_;  // null: none; this rank's wish until set-up
  Profile* quick_profile_ = nullptr;  // the same once it is set up
  Trace* trace_ = nullptr;            // for what does not go by schedule; null: none
  std::uint32_t trace_line_ = 0;      // of blocking calls
  std::shared_ptr<LoggedResults> results_;
  std::shared_ptr<Duplicate> comparison_;  // for the MPI's own collectives; null: none
};

}  // namespace gradred
