#include "named/kernel_calls.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "base/signature.h"
#include "engine/callbacks.h"
#include "engine/waiting.h"
#include "named/named.h"
#include "reduce/wire.h"

namespace gradred {
namespace {

class NoHook final : public WaitHook {
 public:
  void waiting() override {}
  void long_work() override {}
};

using Operations = std::vector<std::shared_ptr<NamedOperation>>;

// Returns whether it has ended, with or without an error.
bool ends_by(NamedOperation& operation, std::uint64_t deadline_ns) {
  NoHook hook;
  try {
    return wait_until(operation, hook, deadline_ns);
  } catch (...) {  // a time limit, which is its error too
    return true;
  }
}

struct Submitter {
  std::shared_ptr<NamedOperations> operations;
  std::uint64_t unnamed = 0;  // calls without a name so far
};

struct Served {
  std::mutex mutex;
  std::map<int, Submitter> by_set;
};

// Never destroyed: kernels may run until the process ends.
Served& served() {
  static auto* const made = new Served;
  return *made;
}

// The operations of the call's process set, or nullptr; and the name of the call, with its kind.
std::shared_ptr<NamedOperations> operations_of(const KernelCall& call, std::string& name) {
  const std::lock_guard lock(served().mutex);
  const auto found = served().by_set.find(call.process_set);
  if (found == served().by_set.end()) return nullptr;
  name = std::string(call.kind) + "." + call.name;
  if (call.name[0] == 0) name += "unnamed." + std::to_string(++found->second.unnamed);
  return found->second.operations;
}

KernelEnd end_of(const std::exception_ptr& failure, bool submitted, std::string& text) {
  try {
    std::rethrow_exception(failure);
  } catch (const UsageError& error) {
    text = error.what();
    return submitted ? KernelEnd::kDisagreed : KernelEnd::kRefused;
  } catch (const TransportError& error) {
    text = error.what();
    return KernelEnd::kLost;
  } catch (const std::exception& error) {
    text = error.what();
    return KernelEnd::kFailed;
  }
}

// A call in flight. Its arrays form one named operation, or several: one takes as many arrays of
// one type as a submission can list, so that ranks that have joined can take part.
class CallInFlight {
 public:
  CallInFlight(std::size_t count, KernelDone done, void* context)
      : count_(count), done_(done), context_(context) {}

  // Submits the call's operations. If one is refused, those before it are in flight nevertheless,
  // and the peers' operations of its name and of those behind it end with an error.
  void submit(const KernelCall& call);
  const Operations& operations() const { return operations_; }
  // Called once for each operation that has ended, and once after submit(): the last of these calls
  // `done`, and destroys this object.
  void end_one();

 private:
  void submit_or_refuse(const KernelCall& call, std::size_t first, std::size_t count);
  void submit_part(const KernelCall& call, std::size_t first, std::size_t count);
  std::string name_of_part(std::size_t first) const;
  void fail(const std::exception_ptr& failure, bool submitted);
  void tell();

  const std::size_t count_;
  const KernelDone done_;
  void* const context_;
  std::shared_ptr<NamedOperations> all_;
  std::string name_;
  Operations operations_;
  std::atomic<std::size_t> left_{1};  // operations that have not ended, and submit()
  KernelEnd end_ = KernelEnd::kWell;
  std::string text_;
};

void CallInFlight::fail(const std::exception_ptr& failure, bool submitted) {
  if (end_ == KernelEnd::kWell) end_ = end_of(failure, submitted, text_);
}

void CallInFlight::submit(const KernelCall& call) {
  all_ = operations_of(call, name_);
  if (all_ == nullptr) {
    end_ = KernelEnd::kNotServed;
    text_ = "gradred has not been initialized; call init() first";
    return;
  }
  std::size_t first = 0;
  do {
    std::size_t last = first;
    while (last < call.count && last - first < Submission::kMostParts &&
           call.arrays[last].dtype == call.arrays[first].dtype) {
      ++last;
    }
    submit_or_refuse(call, first, last - first);
    first = last;
  } while (first < call.count);
}

// Once a part has been refused, those behind it are, too: the peers may have submitted them.
void CallInFlight::submit_or_refuse(const KernelCall& call, std::size_t first, std::size_t count) {
  try {
    if (end_ == KernelEnd::kRefused) throw UsageError(text_);
    if (end_ == KernelEnd::kWell) submit_part(call, first, count);
  } catch (const UsageError& error) {
    fail(std::current_exception(), false);
    all_->refuse(name_of_part(first), error.what());
  } catch (...) {
    fail(std::current_exception(), false);
  }
}

std::string CallInFlight::name_of_part(std::size_t first) const {
  return first == 0 ? name_ : name_ + "." + std::to_string(first);
}

// The rows for each rank; without splits the same number for all.
std::vector<std::int64_t> splits_of(const KernelCall& call, NamedKind kind, std::int64_t rows,
                                    int ranks) {
  if (kind != NamedKind::kAlltoall || call.split_count > 0) {
    return {call.splits, call.splits + call.split_count};
  }
  if (rows % ranks != 0) {
    throw UsageError("alltoall: " + std::to_string(rows) + " rows do not divide among " +
                     std::to_string(ranks) + " ranks. Pass splits");
  }
  return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), rows / ranks);
}

void CallInFlight::submit_part(const KernelCall& call, std::size_t first, std::size_t count) {
  const auto kind = named_kind(call.kind);
  if (!kind) throw UsageError(std::string(call.kind) + " is not a kind of named operation");
  Submission what;
  what.kind = *kind;
  what.op = static_cast<Op>(call.op);
  what.prescale = call.prescale;
  what.postscale = call.postscale;
  what.root = call.root;
  what.wire = wire_named(call.wire);
  std::string structure = first == 0 ? call.structure : "";  // one part fails for all
  if (!structure.empty()) what.structure = mix(1, structure);
  std::vector<NamedArray> arrays;
  arrays.reserve(count);
  for (const KernelArray& given : std::span(call.arrays + first, count)) {
    const std::span shape(given.shape, static_cast<std::size_t>(given.axes));
    if (shape.empty() && given.out == nullptr) {
      throw UsageError(std::string(call.kind) + ": the tensor has no axis. Pass one with rows");
    }
    NamedArray array;
    array.in.data = given.in;
    array.out.data = given.out;
    array.dtype = static_cast<DType>(given.dtype);
    array.count = 1;
    for (const std::int64_t length : shape) array.count *= static_cast<std::size_t>(length);
    add_array(what, arrays, std::move(array), shape);
  }
  finish_arrays(what, arrays);
  auto splits = splits_of(call, *kind, arrays.empty() ? 0 : arrays[0].rows, all_->size());
  left_.fetch_add(1, std::memory_order_relaxed);
  try {
    operations_.push_back(all_->submit(name_of_part(first), what, std::move(arrays),
                                       std::move(splits), {.structure = std::move(structure)}));
    operations_.back()->reported();  // `done` gets the error
  } catch (...) {
    left_.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
}

void CallInFlight::end_one() {
  if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  for (const auto& operation : operations_) {
    try {
      operation->rethrow();
    } catch (...) {
      fail(std::current_exception(), true);
    }
  }
  tell();
  delete this;
}

void CallInFlight::tell() {
  std::vector<const void*> outputs;
  std::vector<std::size_t> bytes;
  std::vector<const std::int64_t*> rows;
  bool holds_memory = false;
  for (const auto& operation : operations_) {
    holds_memory |= operation->holds_memory();
    for (const NamedOutput& output : operation->outputs) {
      outputs.push_back(output.memory.get());
      bytes.push_back(output.bytes);
    }
    for (const auto& of_array : operation->rows) rows.push_back(of_array.data());
  }
  const bool well = end_ == KernelEnd::kWell;
  const KernelResult result{
      .end = end_,
      .text = text_.c_str(),
      .holds_memory = holds_memory,
      .rank = all_ == nullptr ? 0 : all_->rank(),
      .ranks = all_ == nullptr ? 0 : all_->size(),
      .outputs = well && outputs.size() == count_ ? outputs.data() : nullptr,
      .output_bytes = bytes.data(),
      .rows = well && rows.size() == count_ ? rows.data() : nullptr,
  };
  done_(context_, &result);
}

// A thread that waits for calls, since no thread of the program does: it advances them, and they
// have time limits and reports like any operation that is waited for.
class WaitingThread {
 public:
  // Throws TransportError if the thread cannot be started.
  void add(const Operations& operations) {
    const std::lock_guard lock(mutex_);
    if (!started_) {
      try {
        std::thread([this] { run(); }).detach();
      } catch (const std::system_error& error) {
        throw TransportError(std::string("a thread that waits for operations cannot be started: ") +
                             error.what() + ". Allow more memory or threads");
      }
      started_ = true;
    }
    waited_for_.insert(waited_for_.end(), operations.begin(), operations.end());
    adding_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      adding_.wait(lock, [this] { return !waited_for_.empty(); });
      const std::shared_ptr<NamedOperation> next = std::move(waited_for_.front());
      waited_for_.pop_front();
      lock.unlock();
      {
        const DoneCallbacks::Waiter waiter(next.get());
        ends_by(*next, UINT64_MAX);
        next->call_callbacks();
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable adding_;
  std::deque<std::shared_ptr<NamedOperation>> waited_for_;
  bool started_ = false;
};

// Never destroyed: its thread never ends.
WaitingThread& waiting_thread() {
  static auto* const made = new WaitingThread;
  return *made;
}

// A kernel that reduces several tensors, such as the gradients of a step, waits so long itself. If
// the peers come meanwhile, this saves two changes of threads. If they don't, the kernel returns,
// so ranks whose graphs run such kernels in different orders go on.
constexpr std::uint64_t kMoment = 500'000;  // nanoseconds

// Waits for operations that end by the deadline, and returns the others.
Operations wait_here(const Operations& operations, CallInFlight* flight,
                     std::uint64_t deadline_ns) {
  Operations others;
  for (const auto& operation : operations) {
    ends_by(*operation, deadline_ns) ? flight->end_one() : others.push_back(operation);
  }
  return others;
}

void submit(const KernelCall* call, bool waits, KernelDone done, void* context) {
  auto* const flight = new CallInFlight(call->count, done, context);
  flight->submit(*call);
  const bool waits_a_moment = call->count > 1;
  Operations left = flight->operations();
  if (!waits && waits_a_moment) left = wait_here(left, flight, now_ns() + kMoment);
  if (!waits && !left.empty()) {
    try {
      done_callbacks().use_threads();
      waiting_thread().add(left);
      for (const auto& operation : left) {
        operation->when_ended([flight] { flight->end_one(); });
      }
    } catch (const TransportError&) {  // no thread can be started: this one waits
      waits = true;
    }
  }
  if (waits) wait_here(left, flight, UINT64_MAX);
  flight->end_one();
}

}  // namespace

const KernelCalls& kernel_calls() {
  static constexpr KernelCalls calls{.version = KernelCalls::kVersion, .submit = submit};
  return calls;
}

void serve_kernels(int process_set, std::shared_ptr<NamedOperations> operations) {
  Submitter before;  // destroyed without the lock
  const std::lock_guard lock(served().mutex);
  before = std::exchange(served().by_set[process_set], Submitter{std::move(operations)});
}

}  // namespace gradred
