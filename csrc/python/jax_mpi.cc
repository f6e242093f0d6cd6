// The collectives that XLA adds to JAX programs of several processes: `lax.psum`, sharded arrays.
//
// XLA can let an MPI carry them out, which it calls by MPItrampoline's ABI. MPItrampoline finds the
// functions by their names in a library, and that is this extension (jax_mpi_names.cc has the names
// that XLA does not use). XLA asks for a communicator for each group of devices, and makes blocking
// calls in threads of its own, without the GIL. docs/jax.md has what a program does.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/copy_bytes.h"
#include "base/errors.h"
#include "base/failure.h"
#include "base/types.h"
#include "comm/communicator.h"
#include "comm/mailboxes.h"
#include "engine/driving.h"
#include "engine/waiting.h"
#include "mpi/mpi.h"
#include "python/gil.h"
#include "python/mpi4py.h"

namespace py = pybind11;

namespace gradred {
namespace jax_mpi {
namespace {

using Handle = std::uintptr_t;

// An error whose text XLA gets as it is.
struct Explained : Error {
  using Error::Error;
};

class Waits final : public WaitHook {
 public:
  void waiting() override {}
  void long_work() override {}
};

// A message in flight: through shared memory, or of the MPI.
struct Message {
  std::shared_ptr<MessageOperation> in_memory;
  mpi::Handle of_mpi = 0;

  void wait() {
    Waits hook;
    if (in_memory != nullptr) return wait_for(*in_memory, hook);
    const mpi::Mpi& mpi = mpi::get();
    Backoff backoff;
    for (int done = 0; done == 0;) {
      mpi.check(mpi.call.Test(&of_mpi, &done, mpi.is.status_ignore), "MPI_Test");
      if (done == 0) backoff.wait([] { drive(); });
    }
  }
};

// The processes of one group of devices, as the ranks of a communicator.
class Processes {
 public:
  // `messages`: a communicator for messages alone. `boxes`: nullptr if the ranks share no memory.
  Processes(std::shared_ptr<Communicator> comm, mpi::Handle messages,
            std::shared_ptr<Mailboxes> boxes)
      : comm_(std::move(comm)), messages_(messages), boxes_(std::move(boxes)) {}
  explicit Processes(std::string problem) : problem_(std::move(problem)) {}

  Communicator& comm() const {
    if (comm_ == nullptr) throw Explained(problem_);
    return *comm_;
  }

  void run(Call call, const void* input, void* result) {
    Communicator& comm = this->comm();
    const std::lock_guard turn(mutex_);
    call.in.data = input == result ? kInPlace : input;
    call.out.data = result;
    validate(call, comm.rank(), comm.size());
    Waits hook;
    // After a failure, the MPI may go on using the arrays, whose memory XLA uses for something
    // else. So calls by messages get memory of gradred's own.
    if (comm.node_path().serves_all() || comm.size() == 1) return comm.run(call, hook);
    run_on_copies(call, hook);
  }

  std::unique_ptr<Message> send(const void* data, int bytes, int to, int tag) {
    auto message = std::make_unique<Message>();
    if (boxes_ != nullptr) {
      message->in_memory = boxes_->send(static_cast<const std::byte*>(data),
                                        static_cast<std::size_t>(bytes), to, tag);
      return message;
    }
    comm();
    const mpi::Mpi& mpi = mpi::get();
    mpi.check(mpi.call.Isend(data, bytes, mpi.is.byte_type, to, tag, messages_, &message->of_mpi),
              "MPI_Isend");
    return message;
  }

  std::unique_ptr<Message> receive(void* data, int bytes, int from, int tag) {
    auto message = std::make_unique<Message>();
    if (boxes_ != nullptr) {
      message->in_memory = boxes_->receive(static_cast<std::byte*>(data),
                                           static_cast<std::size_t>(bytes), from, tag);
      return message;
    }
    comm();
    const mpi::Mpi& mpi = mpi::get();
    mpi.check(mpi.call.Irecv(data, bytes, mpi.is.byte_type, from, tag, messages_, &message->of_mpi),
              "MPI_Irecv");
    return message;
  }

 private:
  void run_on_copies(Call& call, WaitHook& hook) {
    const PlaceInCall place{.rank = comm_->rank(), .size = comm_->size()};
    const std::size_t unit = call.count * size_of(call.dtype);
    const std::size_t given = unit * given_counts(call.kind, place);
    const std::size_t got = unit * got_counts(call.kind, place);
    auto copies = std::make_unique<std::array<std::vector<std::byte>, 2>>();
    auto& [in, out] = *copies;
    in.resize(given + 1);
    out.resize(got + 1);
    if (given > 0) copy_bytes(in.data(), call.input(), given);
    void* const result = std::exchange(call.out.data, out.data());
    call.in.data = in.data();
    try {
      comm_->run(call, hook);
    } catch (...) {
      static_cast<void>(copies.release());
      throw;
    }
    if (got > 0) copy_bytes(result, out.data(), got);
  }

  const std::shared_ptr<Communicator> comm_;  // nullptr: it could not be made
  const mpi::Handle messages_ = 0;
  const std::shared_ptr<Mailboxes> boxes_;
  const std::string problem_{};
  std::mutex mutex_;  // two programs could be running at a time
};

// Never destroyed: XLA's threads may call until the process ends.
struct All {
  std::mutex mutex;
  std::deque<Processes> groups;  // the handle of the first is kWorld, and so on
  py::object begin, split;       // Python functions that make communicators; null: not served

  static constexpr Handle kWorld = 1;
  static All& get() {
    static auto* const all = new All;
    return *all;
  }
  Processes& operator[](Handle comm) {
    const std::lock_guard lock(mutex);
    if (comm < kWorld || comm >= kWorld + groups.size()) {
      throw UsageError("JAX's processes have no communicator yet");
    }
    return groups[comm - kWorld];
  }
  template <class... Arguments>
  Handle add(Arguments&&... arguments) {
    const std::lock_guard lock(mutex);
    groups.emplace_back(std::forward<Arguments>(arguments)...);
    return kWorld + groups.size() - 1;
  }
};

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

constexpr int kSuccess = 0, kFailed = 1;

template <class Body>
int guarded(Body body) noexcept {
  try {
    body();
    return kSuccess;
  } catch (const Explained& error) {
    last_error() = error.what();
    return kFailed;
  } catch (...) {
    last_error() = text_with_kind(std::current_exception());
    return kFailed;
  }
}

// Calls Python code. Throws Explained with the text of its exception.
template <class Body>
void in_python(Body body) {
  std::string problem = "Python has ended";
  with_gil([&] {
    try {
      body();
      problem.clear();
    } catch (const py::error_already_set& error) {
      problem = py::str(error.type().attr("__name__")).cast<std::string>() + ": " +
                py::str(error.value()).cast<std::string>();
    } catch (...) {
      problem = text_with_kind(std::current_exception());
    }
  });
  if (!problem.empty()) throw Explained(problem);
}

// Adds the communicators that Python code has made: for calls, and for messages with its mailboxes.
Handle add(const py::tuple& made) {
  if (!thread_may_drive()) {
    throw UsageError(
        "gradred.jax_stand_in: XLA calls in threads of its own. Initialise the MPI with "
        "MPI_THREAD_MULTIPLE, which mpi4py does by itself, and leave GRADRED_PROGRESS_THREAD on");
  }
  std::shared_ptr<Mailboxes> boxes;
  if (!made[2].is_none()) boxes = made[2].cast<std::shared_ptr<Mailboxes>>();
  const mpi::Handle messages = boxes == nullptr ? gradred::handle_of(py::object(made[1]).ptr()) : 0;
  py::object(made).release();  // the objects live as long as the process
  return All::get().add(communicator_of(py::object(made[0]).ptr()).shared(), messages,
                        std::move(boxes));
}

// ---- MPItrampoline's handles: numbers of tables ---------------------------------------------

constexpr Handle handle_of(DType dtype) { return 1 + static_cast<Handle>(dtype); }
constexpr Handle handle_of(Op op) { return 1 + static_cast<Handle>(op); }

DType dtype_of(Handle type) {
  if (type < 1 || type > kDTypes) throw UsageError("XLA has passed an unknown element type");
  return static_cast<DType>(type - 1);
}
Op op_of(Handle op) {
  if (op < 1 || op > kOps) throw UsageError("XLA has passed an unknown operation");
  return static_cast<Op>(op - 1);
}
std::size_t count_of(int count) {
  if (count < 0) {  // XLA has narrowed it
    throw UsageError("an array of 2^31 elements or more, which XLA cannot pass on. Reduce parts");
  }
  return static_cast<std::size_t>(count);
}
int bytes_of(int count, Handle type) {
  const std::size_t bytes = count_of(count) * size_of(dtype_of(type));
  if (bytes > INT32_MAX) throw UsageError("a message of 2 GiB or more. Send it in parts");
  return static_cast<int>(bytes);
}

}  // namespace
}  // namespace jax_mpi

void bind_jax_mpi(py::module_& m) {
  m.def(
      "serve_jax_processes",
      [](py::object begin, py::object split) {
        jax_mpi::All& all = jax_mpi::All::get();
        all.begin = std::move(begin);
        all.split = std::move(split);
      },
      py::arg("begin"), py::arg("split"));
}

// ---- what MPItrampoline finds, whose names are outside of any namespace ------------------------

namespace jax_mpi {

#pragma GCC visibility push(default)
extern "C" {

extern const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
extern const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10,
                 mpiwrapper_version_patch = 0;
void mpiwrapper_export_fortran_constants_() {}

extern const Handle MPIABI_COMM_WORLD = All::kWorld;
extern const int MPIABI_UNDEFINED = -1;  // the color of no communicator
extern const Handle MPIABI_INT8_T = handle_of(DType::kInt8);
extern const Handle MPIABI_INT16_T = handle_of(DType::kInt16);
extern const Handle MPIABI_INT32_T = handle_of(DType::kInt32);
extern const Handle MPIABI_INT64_T = handle_of(DType::kInt64);
extern const Handle MPIABI_UINT8_T = handle_of(DType::kUInt8);
extern const Handle MPIABI_UINT16_T = handle_of(DType::kUInt16);
extern const Handle MPIABI_UINT32_T = handle_of(DType::kUInt32);
extern const Handle MPIABI_UINT64_T = handle_of(DType::kUInt64);
extern const Handle MPIABI_BYTE = handle_of(DType::kUInt8);
extern const Handle MPIABI_FLOAT = handle_of(DType::kFloat32);
extern const Handle MPIABI_DOUBLE = handle_of(DType::kFloat64);
extern const Handle MPIABI_C_COMPLEX = handle_of(DType::kComplex64);
extern const Handle MPIABI_C_DOUBLE_COMPLEX = handle_of(DType::kComplex128);
extern const Handle MPIABI_SUM = handle_of(Op::kSum);
extern const Handle MPIABI_PROD = handle_of(Op::kProd);
extern const Handle MPIABI_MIN = handle_of(Op::kMin);
extern const Handle MPIABI_MAX = handle_of(Op::kMax);

// When JAX makes its CPU client, in the thread of the program. XLA takes no error here: the first
// collective has it.
int MPIABI_Init_thread(int*, char***, int required, int* provided) {
  *provided = required;
  return guarded([] {
    try {
      in_python([] {
        if (!All::get().begin) {
          throw UsageError("Call gradred.jax_stand_in.serve() before import jax");
        }
        add(All::get().begin().cast<py::tuple>());
      });
    } catch (const Explained& error) {
      All::get().add(error.what());
    }
  });
}

// gradred and mpi4py end by themselves.
int MPIABI_Finalize() { return kSuccess; }

// XLA asks for communicators in any of its threads, all of which gradred serves.
int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return kSuccess;
}

int MPIABI_Error_string(int, char* text, int* length) {
  constexpr std::size_t kMost = 1023;
  *length = static_cast<int>(last_error().copy(text, kMost));
  text[*length] = 0;
  return kSuccess;
}

// XLA takes no error here either.
int MPIABI_Comm_split(Handle comm, int color, int key, Handle* made) {
  return guarded([&] {
    try {
      All::get()[comm].comm();
      in_python([&] { *made = add(All::get().split(color, key).cast<py::tuple>()); });
    } catch (const Explained& error) {
      *made = All::get().add(error.what());
    }
  });
}

int MPIABI_Comm_free(Handle*) { return kSuccess; }  // they are few, and live with the process

int MPIABI_Comm_rank(Handle comm, int* rank) {
  *rank = 0;
  return guarded([&] { *rank = All::get()[comm].comm().rank(); });
}

int MPIABI_Comm_size(Handle comm, int* size) {
  *size = 1;
  return guarded([&] { *size = All::get()[comm].comm().size(); });
}

int MPIABI_Allreduce(const void* input, void* result, int count, Handle type, Handle op,
                     Handle comm) {
  return guarded([&] {
    const Call call{.kind = Kind::kAllreduce,
                    .count = count_of(count),
                    .dtype = dtype_of(type),
                    .op = op_of(op)};
    All::get()[comm].run(call, input, result);
  });
}

// XLA's counts are equal for all ranks.
int MPIABI_Reduce_scatter(const void* input, void* result, const int* counts, Handle type,
                          Handle op, Handle comm) {
  return guarded([&] {
    const Call call{.kind = Kind::kReduceScatterBlock,
                    .count = count_of(counts[0]),
                    .dtype = dtype_of(type),
                    .op = op_of(op)};
    All::get()[comm].run(call, input, result);
  });
}

int MPIABI_Allgather(const void* input, int count, Handle type, void* result, int, Handle,
                     Handle comm) {
  return guarded([&] {
    const Call call{.kind = Kind::kAllgather, .count = count_of(count), .dtype = dtype_of(type)};
    All::get()[comm].run(call, input, result);
  });
}

int MPIABI_Isend(const void* data, int count, Handle type, int to, int tag, Handle comm,
                 Handle* request) {
  return guarded([&] {
    auto message = All::get()[comm].send(data, bytes_of(count, type), to, tag);
    *request = reinterpret_cast<Handle>(message.release());
  });
}

int MPIABI_Irecv(void* data, int count, Handle type, int from, int tag, Handle comm,
                 Handle* request) {
  return guarded([&] {
    auto message = All::get()[comm].receive(data, bytes_of(count, type), from, tag);
    *request = reinterpret_cast<Handle>(message.release());
  });
}

int MPIABI_Wait(Handle* request, void*) {
  const std::unique_ptr<Message> message(
      reinterpret_cast<Message*>(std::exchange(*request, Handle{0})));
  return guarded([&] { message->wait(); });
}

int MPIABI_Sendrecv(const void* sent, int count, Handle type, int to, int tag, void* received,
                    int received_count, Handle received_type, int from, int received_tag,
                    Handle comm, void*) {
  return guarded([&] {
    Processes& processes = All::get()[comm];
    const auto coming =
        processes.receive(received, bytes_of(received_count, received_type), from, received_tag);
    const auto going = processes.send(sent, bytes_of(count, type), to, tag);
    coming->wait();
    going->wait();
  });
}

}  // extern "C"
#pragma GCC visibility pop

}  // namespace jax_mpi
}  // namespace gradred
