#include "testing/on_threads.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/trace.h"
#include "engine/execution.h"
#include "schedule/partition.h"
#include "schedule/validate.h"
#include "transport/staging.h"
#include "transport/tracing.h"

namespace gradred {
namespace {

enum class ErrorType : std::uint8_t { kUsage, kTimeout, kPeerLost, kTransport, kOther };

struct Failure {
  int rank;
  ErrorType type;
  std::string text;
};

// Describes the current exception. The caller is in a catch block.
Failure current_failure(int rank) {
  try {
    throw;
  } catch (const UsageError& error) {
    return {rank, ErrorType::kUsage, std::string("UsageError: ") + error.what()};
  } catch (const TimeoutError& error) {
    return {rank, ErrorType::kTimeout, std::string("TimeoutError: ") + error.what()};
  } catch (const PeerLost& error) {
    return {rank, ErrorType::kPeerLost, std::string("PeerLost: ") + error.what()};
  } catch (const TransportError& error) {
    return {rank, ErrorType::kTransport, std::string("TransportError: ") + error.what()};
  } catch (const std::exception& error) {
    return {rank, ErrorType::kOther, std::string("Error: ") + error.what()};
  }
}

[[noreturn]] void rethrow(const std::vector<Failure>& failures) {
  std::string text;
  for (const Failure& failure : failures) {
    text +=
        (text.empty() ? "rank " : "\nrank ") + std::to_string(failure.rank) + ": " + failure.text;
  }
  switch (failures.front().type) {
    case ErrorType::kUsage:
      throw UsageError(text);
    case ErrorType::kTimeout:
      throw TimeoutError(text);
    case ErrorType::kPeerLost:
      throw PeerLost(text);
    case ErrorType::kTransport:
      throw TransportError(text);
    case ErrorType::kOther:
      break;
  }
  throw Error(text);
}

bool reduces(const Schedule& schedule) {
  for (const Round& round : schedule.rounds) {
    for (const Step& step : round) {
      if (step.kind == StepKind::kReduce) return true;
    }
  }
  return false;
}

// Runs all slices of one rank.
class RankRun {
 public:
  RankRun(const ThreadsRun& run, Transport& transport, std::uint64_t deadline)
      : run_(run),
        transport_(transport),
        schedule_(*run.schedules[static_cast<std::size_t>(transport.rank())]),
        buffer_(run.buffers[static_cast<std::size_t>(transport.rank())]),
        input_(run.inputs.empty() ? nullptr
                                  : run.inputs[static_cast<std::size_t>(transport.rank())]),
        before_(run.before.empty() ? nullptr
                                   : run.before[static_cast<std::size_t>(transport.rank())]),
        deadline_(deadline) {}

  void start() {
    const Reduction reduction = Reduction::of(run_.op, run_.dtype);
    if (reduction.on_host == nullptr && reduces(schedule_)) {
      throw UsageError("there is no " + std::string(name_of(run_.op)) + " of " +
                       std::string(name_of(run_.dtype)) + " elements; choose another op or type");
    }
    const Signature signature = make_signature(schedule_.collective, run_.op, run_.dtype,
                                               buffer_.bytes / reduction.element(),
                                               static_cast<std::uint64_t>(schedule_.root));
    const Partition parts{buffer_.bytes / reduction.element(), run_.slices};
    for (std::size_t slice = 0; slice < run_.slices; ++slice) {
      const std::size_t begin = parts.begin(slice) * reduction.element();
      const auto* input = static_cast<const std::byte*>(input_) + (input_ == nullptr ? 0 : begin);
      executions_.emplace_back(schedule_, transport_.open(buffer_.memory), parts.length(slice),
                               reduction, buffer_.memory);
      executions_.back().start(buffer_.address + begin, input, static_cast<std::uint32_t>(slice),
                               signature, before_);
    }
  }

  void finish() {
    std::size_t active = executions_.size();
    while (active > 0) {
      for (Execution& execution : executions_) {
        if (execution.active() && execution.advance()) --active;
      }
      if (active > 0 && now_ns() > deadline_) {
        throw TimeoutError(std::to_string(active) + " of " + std::to_string(executions_.size()) +
                           " slices had not finished at the deadline; look at the trace for the "
                           "messages that are missing");
      }
      if (active > 0) std::this_thread::yield();
    }
  }

  void abandon() noexcept {
    for (Execution& execution : executions_) {
      if (execution.active()) execution.abandon();
    }
  }

 private:
  const ThreadsRun& run_;
  Transport& transport_;
  const Schedule& schedule_;
  const Buffer& buffer_;
  const void* const input_;
  Stream* const before_;
  const std::uint64_t deadline_;
  std::deque<Execution> executions_;
};

// Joins its threads when it is destroyed. Not every supported C++ library has std::jthread.
struct Threads {
  ~Threads() {
    for (std::thread& thread : started) thread.join();
  }
  std::vector<std::thread> started;
};

// State that the threads of one run share.
class Runner {
 public:
  explicit Runner(const ThreadsRun& run)
      : run_(run),
        world_(static_cast<int>(run.schedules.size()), run.protocol),
        deadline_(now_ns() + static_cast<std::uint64_t>(1e9 * run.timeout.count())) {}

  void operator()() {
    {
      Threads threads;
      for (int rank = 0; rank < static_cast<int>(run_.schedules.size()); ++rank) {
        threads.started.emplace_back([this, rank] { run_rank(rank); });
      }
    }
    if (!failures_.empty()) rethrow(failures_);
  }

 private:
  void run_rank(int rank) {
    try {
      const std::unique_ptr<Transport> threads = world_.transport(rank);
      Transport* transport = threads.get();
      std::optional<StagingTransport> staging;
      if (run_.staged) transport = &staging.emplace(*transport);
      std::optional<FaultyTransport> faulty;
      if (run_.fault) transport = &faulty.emplace(*transport, *run_.fault);
      if (run_.trace.empty()) return complete(*transport);

      Trace trace(rank);
      TracingTransport tracing(*transport, trace);
      complete(tracing, &trace);
    } catch (...) {
      report(rank);
    }
  }

  // Reports a failure before it writes the trace, so that the other ranks learn of it immediately.
  void complete(Transport& transport, const Trace* trace = nullptr) {
    {
      RankRun rank_run(run_, transport, deadline_);
      try {
        rank_run.start();
        rank_run.finish();
      } catch (...) {
        report(transport.rank());
        rank_run.abandon();
      }
    }
    if (trace != nullptr) trace->write(run_.trace);
  }

  // Reports the current exception to the caller, and to the ranks that wait for this one.
  void report(int rank) {
    const Failure failure = current_failure(rank);
    const Cause cause = failure.type == ErrorType::kUsage      ? Cause::kUsage
                        : failure.type == ErrorType::kPeerLost ? Cause::kPeerLost
                                                               : Cause::kTransport;
    {
      const std::lock_guard lock(mutex_);
      failures_.push_back(failure);
    }
    world_.poison(rank, failure.text, cause);
  }

  const ThreadsRun& run_;
  ThreadsWorld world_;
  const std::uint64_t deadline_;
  std::mutex mutex_;
  std::vector<Failure> failures_;  // ordered by time
};

void check_run(const ThreadsRun& run) {
  const std::size_t size = run.schedules.size();
  if (size == 0) throw UsageError("no schedules were given; give one for each rank");
  if (run.buffers.size() != size) {
    throw UsageError("there are " + std::to_string(size) + " schedules but " +
                     std::to_string(run.buffers.size()) + " inputs; give one of each for a rank");
  }
  if (!run.inputs.empty() && run.inputs.size() != size) {
    throw UsageError("there are " + std::to_string(size) + " schedules but " +
                     std::to_string(run.inputs.size()) + " inputs of their own; give one for each");
  }
  if (run.slices == 0) throw UsageError("a vector in 0 slices; give at least 1");
  for (std::size_t rank = 0; rank < size; ++rank) {
    if (run.schedules[rank] == nullptr) throw UsageError("one of the schedules is None");
    const Schedule& schedule = *run.schedules[rank];
    if (schedule.size != static_cast<int>(size) || schedule.rank != static_cast<int>(rank)) {
      throw UsageError("schedule " + std::to_string(rank) + " is for rank " +
                       std::to_string(schedule.rank) + " of " + std::to_string(schedule.size) +
                       "; it must be for rank " + std::to_string(rank) + " of " +
                       std::to_string(size));
    }
    validate(schedule);
    if (schedule.in_place != (run.inputs.empty() || run.inputs[rank] == nullptr)) {
      throw UsageError("schedule " + std::to_string(rank) +
                       (schedule.in_place ? " is in place, but an input of its own was given"
                                          : " reads an input of its own, but none was given"));
    }
  }
}

}  // namespace

void run_on_threads(const ThreadsRun& run) {
  check_run(run);
  Runner runner(run);
  runner();
}

}  // namespace gradred
