// What a process has of gradred, beside the MPI's table (mpi/mpi.h) and what lower rooms keep of
// other processes: one object, made at first need, with Python or without.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/trace.h"
#include "comm/driving.h"
#include "comm/registry.h"
#include "comm/result_log.h"
#include "comm/settings.h"
#include "engine/engine.h"

namespace gradred {

// Those that this process has met.
class KnownCommunicators {
 public:
  // Two threads may meet a communicator for the first time together: held by who calls the others.
  std::mutex mutex;
  void add(const std::shared_ptr<Communicator>& made);
  std::vector<std::shared_ptr<Communicator>> alive();  // that have not been freed

 private:
  void forget_ended();

  std::list<std::weak_ptr<Communicator>> all_;
  std::size_t checked_at_ = 64;  // entries
};

struct Context {
  // Never destroyed: callbacks of the MPI, threads of ours and handlers at exit may come after
  // static destructors.
  static Context& get();

  Settings settings;
  std::optional<std::string> profile_file;  // of the last settings that asked for a profile
  Registry registry;
  KnownCommunicators communicators;
  Engine engine;
  Driving driving;
  std::once_flag trace_once;
  std::unique_ptr<Trace> trace;  // made when the first communicator is set up with a trace wanted
  std::once_flag result_log_once;
  std::unique_ptr<ResultLog> result_log;  // likewise
  bool ends_by_loss = false;              // of another rank: the exit reason tells of that
  std::string exit_reason;                // why the program ends; empty: it ends well
  std::atomic<bool> is_fork{false};       // a child that a rank has forked
  std::atomic<bool> program_ended{false};
};

}  // namespace gradred
