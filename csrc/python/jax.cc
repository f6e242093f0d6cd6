// Collective operations inside JAX programs: the handler that XLA calls submits a named operation,
// and returns a future that ends with the operation. It runs without the GIL.
#include <pybind11/pybind11.h>

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/copy_bytes.h"
#include "base/errors.h"
#include "base/failure.h"
#include "base/types.h"
#include "engine/callbacks.h"
#include "engine/waiting.h"
#include "python/names.h"
#include "python/py_named.h"
#include "python/xla.h"

namespace py = pybind11;

namespace gradred {
namespace {

DType dtype_of(const xla::Buffer& buffer) {
  for (const DTypeInfo& info : kDTypeInfo) {
    if (info.xla == buffer.dtype) return info.dtype;
  }
  throw UsageError("gradred.jax: gradred has no element type for XLA's type " +
                   std::to_string(buffer.dtype) +
                   ". Convert the array first, for example to float32");
}

std::string_view attribute(const xla::CallFrame& frame, std::string_view name) {
  const xla::Attributes& all = frame.attributes;
  for (std::int64_t i = 0; i < all.size; ++i) {
    if (all.types[i] == xla::kTextAttribute && all.names[i]->view() == name) {
      return static_cast<const xla::Text*>(all.values[i])->view();
    }
  }
  throw Error("internal error: the call has no attribute " + std::string(name));
}

// The name of the collective, which may be used several times in a program
// (src/gradred/jax/uses.py).
std::string name_of(const xla::CallFrame& frame) {
  const std::string name(attribute(frame, "name"));
  const std::string_view use = attribute(frame, "use");
  if (use.empty()) {
    throw UsageError("gradred.jax: JAX has not reported that it has lowered the program of '" +
                     name +
                     "', so that its uses have no numbers. Call "
                     "jax.monitoring.clear_event_listeners() before the first collective, or not");
  }
  return use == "1" ? name : name + ", use " + std::string(use);
}

template <class Number>
Number number_in(std::string_view text) {
  auto number = static_cast<Number>(-1);
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// XLA asks when the handler is registered. Every version since jaxlib 0.4.35 takes 0.1.
bool answers_metadata(const xla::CallFrame& frame) {
  for (xla::Extension* one = frame.extensions; one != nullptr; one = one->next) {
    if (one->type != xla::kMetadataExtension) continue;
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(one)->metadata;
    metadata.version.major = 0;
    metadata.version.minor = 1;
    metadata.traits = 0;
    return true;
  }
  return false;
}

xla::Error* make_error(const xla::Api& api, const std::string& text, xla::Status status) {
  xla::CreateError arguments{sizeof arguments, nullptr, text.c_str(), status};
  return api.functions[xla::Api::kCreateError](&arguments);
}

xla::Error* make_error(const xla::Api& api, const std::exception_ptr& thrown) {
  xla::Status status = xla::Status::kInternal;
  try {
    std::rethrow_exception(thrown);
  } catch (const UsageError&) {
    status = xla::Status::kInvalidArgument;
  } catch (const TimeoutError&) {
    status = xla::Status::kDeadlineExceeded;
  } catch (const PeerLost&) {
    status = xla::Status::kUnavailable;
  } catch (...) {  // any other error is an internal one to XLA
  }
  return make_error(api, text_with_kind(thrown), status);
}

struct Result {
  void* data;
  std::size_t bytes;
  // Memory of gradred's own that the operation uses instead of XLA's; nullptr: it uses XLA's.
  std::unique_ptr<std::byte[]> in, out;
};

// An operation that XLA waits for.
struct AwaitedCall {
  const xla::Api* api;
  std::size_t futures_at;
  xla::Future* future;
  std::shared_ptr<NamedOperation> operation;
  bool is_zero = false;  // this rank gets zeros instead of the result
  std::vector<Result> results;

  void end() noexcept {
    try {
      operation->rethrow();
      for (const Result& one : results) {
        if (is_zero) {
          std::memset(one.data, 0, one.bytes);
        } else if (one.out != nullptr) {
          copy_bytes(one.data, one.out.get(), one.bytes);
        }
      }
      xla::CompleteFuture arguments{sizeof arguments, nullptr, future};
      api->functions[futures_at + 1](&arguments);
    } catch (...) {
      // After the failure the MPI may still write to this memory.
      if (operation->holds_memory()) static_cast<void>(new auto(std::move(results)));
      xla::FailFuture arguments{sizeof arguments, nullptr, future,
                                make_error(*api, std::current_exception())};
      api->functions[futures_at + 2](&arguments);
    }
  }
};

class NoHook final : public WaitHook {
  void waiting() override {}
  void long_work() override {}
};

// The named operations of this process's JAX programs. Never destroyed: XLA's threads may use it
// until the process ends.
class JaxCalls {
 public:
  static JaxCalls& get() {
    static auto* const calls = new JaxCalls;
    return *calls;
  }

  // `futures_at`: the number of the first of XLA's three functions for futures.
  void serve(std::shared_ptr<NamedOperations> engine, std::size_t futures_at) {
    if (!thread_may_drive()) {
      throw UsageError(
          "gradred.jax: XLA waits in threads of its own, so other threads have to advance "
          "operations. Initialise the MPI with MPI_THREAD_MULTIPLE, which mpi4py does by itself, "
          "and leave GRADRED_PROGRESS_THREAD on");
    }
    done_callbacks().use_threads();
    const std::lock_guard lock(mutex_);
    engine_ = std::move(engine);
    futures_at_ = futures_at;
    if (!std::exchange(waits_, true)) start_thread();
  }

  void call(xla::CallFrame& frame) {
    auto call = std::make_shared<AwaitedCall>();
    std::shared_ptr<NamedOperations> engine;
    {
      const std::lock_guard lock(mutex_);
      engine = engine_;
      call->futures_at = futures_at_;
    }
    if (engine == nullptr) {
      throw UsageError(
          "gradred.jax: this process has compiled a call that another one has traced. Call "
          "gradred.jax.init() first");
    }
    call->api = frame.api;
    call->operation = submit(*engine, frame, *call);
    xla::CreateFuture arguments{sizeof arguments, nullptr, nullptr};
    frame.api->functions[call->futures_at](&arguments);
    call->future = frame.future = arguments.future;
    {
      const std::lock_guard lock(mutex_);
      in_flight_.push_back(call->operation);
    }
    submitted_.notify_one();
    call->operation->when_ended([call] { call->end(); });
  }

 private:
  static std::shared_ptr<NamedOperation> submit(NamedOperations& engine,
                                                const xla::CallFrame& frame, AwaitedCall& call) {
    const std::string name = name_of(frame);
    try {
      return submit(engine, name, frame, call);
    } catch (const UsageError& error) {
      engine.refuse(name, error.what());
      throw;
    }
  }

  static std::shared_ptr<NamedOperation> submit(NamedOperations& engine, const std::string& name,
                                                const xla::CallFrame& frame, AwaitedCall& call) {
    const auto kind = named_kind(attribute(frame, "kind"));
    check(kind.has_value() && frame.arguments.size == frame.results.size, "an unknown call");
    Submission what;
    what.kind = *kind;
    what.op = op_named(attribute(frame, "op"));
    what.root = number_in<int>(attribute(frame, "root"));
    what.structure = number_in<std::uint64_t>(attribute(frame, "structure_hash"));
    const int only_rank = number_in<int>(attribute(frame, "only_rank"));
    call.is_zero = only_rank >= 0 && only_rank != engine.rank();
    std::vector<NamedArray> arrays;
    for (std::int64_t i = 0; i < frame.arguments.size; ++i) {
      add(engine, frame.arguments[i], frame.results[i], call, what, arrays);
    }
    finish_arrays(what, arrays);
    std::vector<std::int64_t> splits;
    if (*kind == NamedKind::kAlltoall) splits.assign(static_cast<std::size_t>(engine.size()), 1);
    return engine.submit(name, what, std::move(arrays), std::move(splits),
                         {.structure = std::string(attribute(frame, "structure"))});
  }

  // The shape that this rank submits. Its first axis counts blocks, of which each rank gives or
  // gets one, so that the ranks compare all axes of the array itself.
  static std::vector<std::int64_t> shape_of(NamedKind kind, int size, const xla::Buffer& from) {
    std::vector<std::int64_t> shape(from.shape, from.shape + from.axes);
    if (kind == NamedKind::kAllgather) shape.insert(shape.begin(), 1);
    if (kind == NamedKind::kAlltoall || kind == NamedKind::kReduceScatter) {
      shape.front() /= size;
      shape.insert(shape.begin(), size);
    }
    return shape;
  }

  static void add(const NamedOperations& engine, const xla::Buffer& from, const xla::Buffer& to,
                  AwaitedCall& call, Submission& what, std::vector<NamedArray>& arrays) {
    NamedArray array{.in = {from.data}, .out = {to.data}, .dtype = dtype_of(from), .count = 1};
    for (std::int64_t i = 0; i < from.axes; ++i) {
      array.count *= static_cast<std::size_t>(from.shape[i]);
    }
    array.out_bytes = size_of(array.dtype);
    for (std::int64_t i = 0; i < to.axes; ++i) {
      array.out_bytes *= static_cast<std::size_t>(to.shape[i]);
    }
    call.results.push_back({to.data, array.out_bytes, {}, {}});
    if (!engine.needs_no_mpi()) copy(array, call.results.back());
    add_array(what, arrays, std::move(array), shape_of(what.kind, engine.size(), from));
  }

  // After a failure the MPI may go on writing to the memory of an operation, which XLA then uses
  // for something else. So operations by messages get memory of gradred's own.
  static void copy(NamedArray& array, Result& result) {
    result.in = std::make_unique_for_overwrite<std::byte[]>(array.bytes() + 1);
    result.out = std::make_unique_for_overwrite<std::byte[]>(array.out_bytes + 1);
    if (array.count > 0) copy_bytes(result.in.get(), array.in.data, array.bytes());
    array.in.data = result.in.get();
    array.out.data = result.out.get();
  }

  // Run by threads of their own, of which one at a time leads: it waits for the oldest operation,
  // so that waits are reported and have the time limit, and advances all others meanwhile. When
  // that operation has ended, another thread leads, because XLA goes on with the program in the
  // thread that completes the future.
  [[noreturn]] void wait() {
    while (true) {
      ++followers_;
      std::unique_lock leads(leading_);
      const std::shared_ptr<NamedOperation> oldest = take();
      const DoneCallbacks::Waiter waiter(oldest.get());
      NoHook hook;
      try {
        if (--followers_ == 0) start_thread();
      } catch (const std::system_error&) {
        // No thread can be started: this one leads again when XLA has returned from the callback.
      }
      try {
        wait_until(*oldest, hook, UINT64_MAX);
      } catch (...) {
        // The time limit has ended the operation with this error, which XLA gets.
      }
      leads.unlock();
      oldest->call_callbacks();
    }
  }

  std::shared_ptr<NamedOperation> take() {
    std::unique_lock lock(mutex_);
    submitted_.wait(lock, [this] { return !in_flight_.empty(); });
    std::shared_ptr<NamedOperation> oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    return oldest;
  }

  void start_thread() {
    std::thread([this] { wait(); }).detach();
  }

  std::mutex mutex_;
  std::condition_variable submitted_;
  std::shared_ptr<NamedOperations> engine_;
  std::size_t futures_at_ = 0;
  bool waits_ = false;  // a thread has been started
  std::deque<std::shared_ptr<NamedOperation>> in_flight_;
  std::mutex leading_;  // taken before mutex_
  std::atomic<int> followers_{0};
};

xla::Error* handle_on_host(xla::CallFrame* frame) {
  if (answers_metadata(*frame) || frame->stage != xla::kExecuteStage) return nullptr;
  try {
    JaxCalls::get().call(*frame);
    return nullptr;
  } catch (...) {
    return make_error(*frame->api, std::current_exception());
  }
}

xla::Error* handle_on_device(xla::CallFrame* frame) {
  if (answers_metadata(*frame) || frame->stage != xla::kExecuteStage) return nullptr;
  return make_error(*frame->api,
                    "UsageError: gradred.jax: the array is in a device's memory, and JAX programs "
                    "are served on the CPU alone. Set JAX_PLATFORMS=cpu, or pass the array to "
                    "gradred.allreduce outside of jit, which serves arrays on GPUs",
                    xla::Status::kUnimplemented);
}

}  // namespace

void bind_jax(py::module_& m) {
  m.def(
      "serve_jax",
      [](std::shared_ptr<NamedOperations> engine, std::size_t futures_at) {
        JaxCalls::get().serve(std::move(engine), futures_at);
      },
      py::arg("engine"), py::arg("futures_at"));
  m.def("jax_handlers", [] {
    return py::make_tuple(py::capsule(reinterpret_cast<void*>(&handle_on_host)),
                          py::capsule(reinterpret_cast<void*>(&handle_on_device)));
  });
}

}  // namespace gradred
