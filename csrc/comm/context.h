// The state of gradred in one process, except for the MPI's table (mpi/mpi.h) and what lower layers
// know of other processes. One object, made at first need, with or without Python.
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

// The communicators that this process knows.
class KnownCommunicators {
 public:
  // Callers of the functions below hold it: two threads may use a new communicator at the same
  // time.
  std::mutex mutex;
  void add(const std::shared_ptr<Communicator>& made);
  std::vector<std::shared_ptr<Communicator>> alive();  // that have not been freed

 private:
  void forget_ended();

  std::list<std::weak_ptr<Communicator>> all_;
  std::size_t checked_at_ = 64;  // entries at which ended ones are removed next
};

struct Context {
  // Never destroyed: callbacks of the MPI, gradred's threads and exit handlers may run after static
  // destructors.
  static Context& get();

  Settings settings;
  std::optional<std::string> profile_file;  // from the last settings that asked for a profile
  Registry registry;
  KnownCommunicators communicators;
  Engine engine;
  Driving driving;
  std::once_flag trace_once;
  std::unique_ptr<Trace> trace;  // made when the first communicator is set up with a trace wanted
  std::once_flag result_log_once;
  std::unique_ptr<ResultLog> result_log;  // likewise
  bool ends_by_loss = false;              // the exit reason is the loss of another rank
  std::string exit_reason;                // why the program ends; empty: it ends well
  std::atomic<bool> is_fork{false};       // this process is a child that a rank has forked
  std::atomic<bool> program_ended{false};
};

}  // namespace gradred
