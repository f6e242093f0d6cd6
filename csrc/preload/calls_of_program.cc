#include "preload/calls_of_program.h"

#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "base/errors.h"
#include "device/location.h"
#include "device/readable.h"
#include "preload/errors_of_mpi.h"
#include "reduce/reduce.h"
#include "runtime/rank_process.h"

namespace gradred::preload {
namespace {

constexpr int kSuccess = 0;  // MPI_SUCCESS
using Bytes = std::vector<std::byte>;

bool is_in_place(const void* address) { return address == mpi::get().is.in_place; }

// Arrays that a program for a GPU-aware MPI has in a device's memory.
Memory memory_at(const void* address, std::size_t bytes) {
  if (address == nullptr || !device::may_have_driver()) [[likely]] {
    return {};
  }
  static const auto& options = *new device::Options;
  const auto found = device::locate(address, bytes, std::nullopt, options);
  return found.memory != nullptr ? Memory(*found.memory) : Memory();
}

void place(Call& call, const PlaceInCall& at) {
  const std::size_t bytes = call.count * size_of(call.dtype);
  if (!call.in_place()) {
    call.in.memory = memory_at(call.in.data, bytes * given_counts(call.kind, at));
  }
  call.out.memory = memory_at(call.out.data, bytes * vector_counts(call.kind, at.size));
  if (!call.on_host()) call.order = std::make_shared<const CallOrder>();
}

// What gradred knows of a reduction. Nothing: the MPI carries it out, whatever it thinks of it. The
// ranks agree on that, because MPI requires them to pass equal arguments.
std::optional<Call> call_of(const Reduction& asked) {
  const auto dtype = dtype_of(asked.type);
  const auto op = op_of(asked.op);
  if (!dtype || !op || asked.count <= 0 || find_reduction(*op, *dtype) == nullptr) {
    return std::nullopt;
  }
  const mpi::Mpi& mpi = mpi::get();  // which has few operations of bytes and of MPI_C_BOOL
  if (mpi.normalise(asked.type) == mpi.is.byte_type) return std::nullopt;
  if (*dtype == DType::kBool && !is_logical(*op)) return std::nullopt;
  Call call{.kind = asked.kind,
            .in = {asked.send},
            .out = {asked.recv},
            .count = static_cast<std::size_t>(asked.count),
            .dtype = *dtype,
            .op = *op};
  // Some programs pass one address twice, which MPI forbids and most MPIs accept.
  if (is_in_place(asked.send) || asked.send == asked.recv) call.in.data = kInPlace;
  return call;
}

// Whether there is memory where this rank gives or gets elements; the MPI reports if not.
bool has_memory(const Call& call, const ProgramComm& comm) {
  const PlaceInCall at{comm.rank, comm.size, call.root};
  const bool no_input = call.in.data == nullptr && given_counts(call.kind, at) > 0;
  const bool no_result = call.out.data == nullptr && got_counts(call.kind, at) > 0;
  return !no_input && !no_result;
}

// A reduction that gradred carries out on this communicator.
std::optional<Call> served(const ProgramComm& comm, const Reduction& asked) {
  auto call = call_of(asked);
  const bool serves = call && comm.serves(*call, call->count * size_of(call->dtype));
  return serves && has_memory(*call, comm) ? call : std::nullopt;
}

// Runs `work`, and passes an error to the communicator's error handler.
template <class Work>
std::optional<int> reported(const ProgramComm& comm, Work work) {
  try {
    return work();
  } catch (...) {
    return raise_error(comm.handle, std::current_exception());
  }
}

int run(ProgramComm& comm, Call& call) {
  place(call, {comm.rank, comm.size, call.root});
  PlainWait hook;
  comm.comm().run(call, hook);
  return kSuccess;
}

// Writes a handle where the program has its variable, of the MPI's length.
void store(mpi::Handle* variable, mpi::Handle handle) {
  std::memcpy(variable, &handle, mpi::get().is.handle_bytes);
}

// Elements of a type as the ranks agree on them: their types may differ, but not their bytes.
struct Elements {
  std::size_t bytes;
  bool is_plain;  // they lie one after the other
};

// Returns nothing if the type is longer than any call that gradred serves, or invalid.
std::optional<Elements> elements(std::int64_t count, mpi::Handle type) {
  if (count < 0 || mpi::get().normalise(type) == mpi::get().is.type_null) return std::nullopt;
  if (const auto dtype = dtype_of(type)) {
    return Elements{static_cast<std::size_t>(count) * size_of(*dtype), true};
  }
  int bytes = 0;
  if (more().Type_size(type, &bytes) != kSuccess || bytes < 0) return std::nullopt;
  return Elements{static_cast<std::size_t>(count) * static_cast<std::size_t>(bytes), false};
}

void pack(const void* data, std::int64_t count, mpi::Handle type, std::span<std::byte> packed,
          mpi::Handle comm) {
  int position = 0;
  const auto bytes = static_cast<int>(packed.size());
  mpi::get().check(
      more().Pack(data, static_cast<int>(count), type, packed.data(), bytes, &position, comm),
      "MPI_Pack");
  check(position == bytes, "the MPI packs elements as they are");
}

void unpack(std::span<const std::byte> packed, void* data, std::int64_t count, mpi::Handle type,
            mpi::Handle comm) {
  int position = 0;
  mpi::get().check(more().Unpack(packed.data(), static_cast<int>(packed.size()), &position, data,
                                 static_cast<int>(count), type, comm),
                   "MPI_Unpack");
}

int broadcast_packed(ProgramComm& comm, const Broadcast& asked, Call& call) {
  Bytes packed(call.count);
  if (comm.rank == asked.root) {
    pack(asked.data, asked.count, asked.type, packed, comm.handle);
  }
  call.out.data = packed.data();
  const int code = run(comm, call);
  if (comm.rank != asked.root) {
    unpack(packed, asked.data, asked.count, asked.type, comm.handle);
  }
  return code;
}

// The address of block `index` of those that an allgather receives.
const void* block_at(const Gathering& asked, int index) {
  std::intptr_t lower = 0, extent = 0;
  mpi::get().check(more().Type_get_extent(asked.recv_type, &lower, &extent), "MPI_Type_get_extent");
  return static_cast<const std::byte*>(asked.recv) + index * asked.recv_count * extent;
}

int gather_packed(ProgramComm& comm, const Gathering& asked, Call& call, bool recv_is_plain) {
  Bytes mine(call.count), all(recv_is_plain ? 0 : call.count * static_cast<std::size_t>(comm.size));
  if (call.in_place()) {
    pack(block_at(asked, comm.rank), asked.recv_count, asked.recv_type, mine, comm.handle);
  } else {
    pack(asked.send, asked.send_count, asked.send_type, mine, comm.handle);
  }
  call.in.data = mine.data();
  if (!recv_is_plain) call.out.data = all.data();
  const int code = run(comm, call);
  if (!recv_is_plain) {
    unpack(all, asked.recv, asked.recv_count * comm.size, asked.recv_type, comm.handle);
  }
  return code;
}

}  // namespace

std::optional<int> reduce(ProgramComm* comm, const Reduction& asked) {
  if (comm == nullptr) return std::nullopt;
  return reported(*comm, [&]() -> std::optional<int> {
    if (!comm->may_serve_blocking()) return std::nullopt;
    auto call = served(*comm, asked);
    return call ? std::optional(run(*comm, *call)) : std::nullopt;
  });
}

std::optional<int> broadcast(ProgramComm* comm, const Broadcast& asked) {
  if (comm == nullptr) return std::nullopt;
  return reported(*comm, [&]() -> std::optional<int> {
    if (!comm->may_serve_blocking()) return std::nullopt;
    const auto found = elements(asked.count, asked.type);
    if (!found || found->bytes == 0 || asked.root < 0 || asked.root >= comm->size) {
      return std::nullopt;
    }
    Call call{.kind = Kind::kBcast,
              .out = {asked.data},
              .count = found->bytes,
              .dtype = DType::kUInt8,
              .root = asked.root};
    if (!comm->serves(call, found->bytes)) return std::nullopt;
    if (!found->is_plain) return broadcast_packed(*comm, asked, call);
    return asked.data != nullptr ? std::optional(run(*comm, call)) : std::nullopt;
  });
}

std::optional<int> gather(ProgramComm* comm, const Gathering& asked) {
  if (comm == nullptr) return std::nullopt;
  return reported(*comm, [&]() -> std::optional<int> {
    if (!comm->may_serve_blocking()) return std::nullopt;
    const bool in_place = is_in_place(asked.send);
    const auto recv = elements(asked.recv_count, asked.recv_type);
    const auto send = in_place ? recv : elements(asked.send_count, asked.send_type);
    if (!recv || !send || send->bytes == 0 || send->bytes != recv->bytes) return std::nullopt;
    Call call{.kind = Kind::kAllgather,
              .in = {in_place ? kInPlace : asked.send},
              .out = {asked.recv},
              .count = send->bytes,
              .dtype = DType::kUInt8};
    if (!comm->serves(call, send->bytes)) return std::nullopt;
    if (!send->is_plain || !recv->is_plain) {
      return gather_packed(*comm, asked, call, recv->is_plain);
    }
    return has_memory(call, *comm) ? std::optional(run(*comm, call)) : std::nullopt;
  });
}

std::optional<int> start_reduction(ProgramComm* comm, const Reduction& asked,
                                   mpi::Handle* request) {
  if (comm == nullptr || !comm->may_serve_started()) return std::nullopt;
  return reported(*comm, [&]() -> std::optional<int> {
    auto call = served(*comm, asked);
    if (!call) return std::nullopt;
    place(*call, {comm->rank, comm->size, 0});
    const auto operation = comm->comm().start_unless_ended(*call);
    mpi::Handle made = operation != nullptr ? operation->request() : mpi::get().is.request_null;
    if (made == mpi::get().is.request_null) {
      PlainWait hook;
      if (operation != nullptr) wait_for(*operation, hook);
      EndedRequest ended;
      ended.open();
      made = ended.handle();
      ended.leave();
    }
    store(request, made);
    return kSuccess;
  });
}

}  // namespace gradred::preload
