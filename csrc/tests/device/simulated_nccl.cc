// A library with NCCL's functions on the simulated driver, for tests. Ranks meet in shared memory,
// and the kernels compiled by g++ do the reductions.
//
// Its calls are nonblocking and often return "in progress". Each call of a group waits in the
// device's queue until all ranks have made it. SIMULATED_NCCL_VERSION sets the reported version.
// The library refuses to connect ranks that share a device, except from version 2.30 on with
// NCCL_MULTI_RANK_GPU_ENABLE=1. If a rank gives up before all are connected, the others fail.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "simulated_driver.h"

namespace simulated {
namespace {

constexpr int kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;
constexpr std::size_t kSlot = std::size_t{64} << 20;  // bytes per rank, most of them unused
constexpr std::size_t kMostRanks = 8;

struct UniqueId {
  char bytes[128];
};

struct Type {
  const char* name;  // in kernel names; nullptr: can only be moved
  std::size_t bytes;
};
constexpr std::array<Type, 10> kTypes = {{{nullptr, 1},
                                          {"uint8", 1},
                                          {"int32", 4},
                                          {nullptr, 4},
                                          {"int64", 8},
                                          {nullptr, 8},
                                          {"float16", 2},
                                          {"float32", 4},
                                          {"float64", 8},
                                          {"bfloat16", 2}}};
constexpr std::array<const char*, 4> kOps = {"sum", "prod", "max", "min"};
constexpr int kAverage = 4, kFirstOwn = 5;

struct Shared {
  std::atomic<std::uint64_t> connected, agreed, arrived, departed;
  std::atomic<bool> given_up;
  std::array<std::atomic<int>, kMostRanks> devices;
};

// Removes names at the process's end. If a rank has not come, others may use the name until then.
struct Names {
  std::vector<std::string> names;
  Names() = default;
  ~Names() {
    for (const std::string& name : names) shm_unlink(name.c_str());
  }
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;
};

struct Comm {
  std::string name;
  Shared* shared;
  std::byte* slots;
  int rank, ranks;
  std::atomic<bool> aborted{false}, agreed{false}, joined{false};
  std::atomic<std::uint64_t> issued{0}, begun{0};
  std::atomic<int> polls{0};
  double factor = 1;

  std::byte* slot(int of) const { return slots + static_cast<std::size_t>(of) * kSlot; }
  bool all(const std::atomic<std::uint64_t>& counted, std::uint64_t calls) const {
    return aborted || counted >= calls * static_cast<std::uint64_t>(ranks);
  }
};

std::size_t mapped_bytes() { return sizeof(Shared) + 4096 + kMostRanks * kSlot; }

// Reduces the data in all ranks' slots, `offset` bytes from their beginning.
void reduce(const std::string& name, void* target, const Comm& comm, std::size_t offset,
            std::size_t count, double factor, bool divide) {
  gradred_kernels::Arguments call{};
  call.targets[0] = target;
  call.written = 1;
  call.count = count;
  call.k = static_cast<unsigned>(comm.ranks);
  for (int rank = 0; rank < comm.ranks; ++rank) call.inputs[rank] = comm.slot(rank) + offset;
  call.factor = factor;
  call.divide = divide ? 1 : 0;
  run_kernel(name, call);
}

double from_half(unsigned bits) {
  const double fraction = 1 + (bits & 0x3ffU) / 1024.0;
  return ((bits & 0x8000U) != 0 ? -1 : 1) *
         std::ldexp(fraction, static_cast<int>(bits >> 10 & 0x1fU) - 15);
}

// The work of one rank's call in a stream. In a captured stream it may run repeatedly.
struct Call {
  Comm* comm;
  const void* input;
  std::size_t input_bytes;
  void* result;
  std::size_t result_bytes;
  std::function<bool(std::byte* result)> finish;  // called when all inputs are there

  int give(void* stream) const {
    if (comm->aborted) return kInvalidUsage;
    if (input_bytes > kSlot) return kInvalidArgument;
    const bool replayed = is_captured(stream);
    const std::uint64_t turn = replayed ? 0 : comm->issued++;
    const Call self = *this;
    comm->polls = static_cast<int>(std::random_device()() % 3);
    const int code = simulated::give(
        stream, [self] { return self.put(); },
        [self, replayed, turn] {
          const std::uint64_t begun = self.comm->begun;
          return self.comm->aborted || ((replayed || begun == turn) &&
                                        self.comm->all(self.comm->shared->departed, begun));
        });
    if (code != kSuccess) return kInvalidArgument;
    static_cast<void>(simulated::give(
        stream, [self] { return self.take(); },
        [self] { return self.comm->all(self.comm->shared->arrived, self.comm->begun); }));
    return kInProgress;
  }
  bool put() const {
    if (comm->aborted) return true;
    std::shared_ptr<void> keep;
    const std::byte* const from =
        input_bytes == 0 ? nullptr : reachable(reinterpret_cast<Address>(input), input_bytes, keep);
    if (input_bytes > 0 && from == nullptr) return false;
    if (input_bytes > 0) std::memcpy(comm->slot(comm->rank), from, input_bytes);
    ++comm->begun;
    ++comm->shared->arrived;
    return true;
  }
  bool take() const {
    if (comm->aborted) return true;
    std::shared_ptr<void> keep;
    std::byte* const to = reachable(reinterpret_cast<Address>(result), result_bytes, keep);
    if (result_bytes > 0 && to == nullptr) return false;
    const bool well = result_bytes == 0 || finish(to);
    ++comm->shared->departed;
    return well;
  }
};

std::string kernel_of(int type, const char* op) {
  return std::string("gradred_") + kTypes[static_cast<std::size_t>(type)].name + "_" + op + "_0";
}

// Returns a function that reduces `count` elements of all ranks' slots, from `offset` bytes on.
std::function<bool(std::byte*)> folding(Comm* comm, int type, int op, std::size_t offset,
                                        std::size_t count) {
  return [=, factor = comm->factor](std::byte* to) {
    if (op < kAverage) {
      reduce(kernel_of(type, kOps[static_cast<std::size_t>(op)]), to, *comm, offset, count, 1,
             false);
    } else {
      const bool averages = op == kAverage;
      reduce(kernel_of(type, "scaled_sum"), to, *comm, offset, count,
             averages ? comm->ranks : factor, averages);
    }
    return true;
  };
}

bool is_known(int type, int op) {
  const bool has_type = type >= 0 && static_cast<std::size_t>(type) < kTypes.size();
  return has_type && kTypes[static_cast<std::size_t>(type)].name != nullptr && op >= 0 &&
         op <= kFirstOwn;
}

int version() {
  const char* const text = std::getenv("SIMULATED_NCCL_VERSION");
  return text != nullptr ? std::atoi(text) : 22707;
}

bool may_share_devices() {
  const char* const text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return version() >= 23000 && text != nullptr && std::strcmp(text, "1") == 0;
}

// The state of a connection: connected, in progress, or an error.
int connection(Comm& comm) {
  Shared& shared = *comm.shared;
  if (comm.joined) return kSuccess;
  if (shared.given_up) return kRemoteError;
  if (shared.connected < static_cast<std::uint64_t>(comm.ranks)) return kInProgress;
  const auto own = static_cast<std::size_t>(comm.rank);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(comm.ranks); ++rank) {
    const bool shares = rank != own && shared.devices[rank] == shared.devices[own];
    if (shares && !may_share_devices()) return kInvalidUsage;
  }
  if (!comm.agreed.exchange(true)) ++shared.agreed;
  return shared.agreed == shared.connected ? kSuccess : kInProgress;
}

}  // namespace
}  // namespace simulated

using namespace simulated;  // NOLINT: what follows is all of C

extern "C" {

int ncclGetVersion(int* found) { return *found = version(), kSuccess; }
const char* ncclGetErrorString(int code) {
  return code == kInvalidUsage ? "invalid usage" : "simulated failure";
}
const char* ncclGetLastError(void*) { return "of the simulated library"; }
int ncclGetUniqueId(UniqueId* id) {
  if (failing_in_context("ncclGetUniqueId") != kSuccess) return 2;
  const std::string name = "/simulated-nccl-" + std::to_string(std::random_device()());
  std::memset(id, 0, sizeof *id);
  name.copy(id->bytes, sizeof id->bytes - 1);
  return kSuccess;
}
int ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, void*) {
  if (failing_in_context("ncclCommInitRank") != kSuccess) return 2;
  const int file = shm_open(id.bytes, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 || ranks > static_cast<int>(kMostRanks)) return kInvalidArgument;
  if (ftruncate(file, static_cast<off_t>(mapped_bytes())) != 0) return 2;
  void* const at =
      mmap(nullptr, mapped_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  auto* const shared = static_cast<Shared*>(at);
  *comm = new Comm{id.bytes, shared, static_cast<std::byte*>(at) + 4096, rank, ranks};
  shared->devices[static_cast<std::size_t>(rank)] = current_device();
  static Names opened;
  opened.names.emplace_back(id.bytes);
  if (++shared->connected == static_cast<std::uint64_t>(ranks)) shm_unlink(id.bytes);
  return kInProgress;
}
int ncclCommGetAsyncError(Comm* comm, int* error) {
  if (failing("ncclCommGetAsyncError") != kSuccess) return *error = 6, kSuccess;
  *error = connection(*comm);
  if (*error == kSuccess && comm->polls-- > 0) *error = kInProgress;
  if (*error == kSuccess) comm->joined = true;
  return kSuccess;
}
// The object is not freed, as enqueued work may still access it.
int ncclCommAbort(Comm* comm) {
  comm->aborted = true;
  if (!comm->joined) comm->shared->given_up = true;
  return kSuccess;
}
int ncclCommDestroy(Comm* comm) { return ncclCommAbort(comm); }
int ncclRedOpCreatePreMulSum(int* op, void* factor, int type, int, Comm* comm) {
  double value = 0;
  if (type == 8) std::memcpy(&value, factor, 8);
  if (type == 7) {
    float narrow = 0;
    std::memcpy(&narrow, factor, 4);
    value = narrow;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, factor, 2);
  if (type == 6) value = from_half(bits);
  if (type == 9) value = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  comm->factor = value;
  return *op = kFirstOwn, kSuccess;
}
int ncclRedOpDestroy(int, Comm*) { return kSuccess; }

int ncclAllReduce(const void* send, void* recv, std::size_t count, int type, int op, Comm* comm,
                  void* stream) {
  if (!is_known(type, op)) return kInvalidArgument;
  const std::size_t bytes = count * kTypes[static_cast<std::size_t>(type)].bytes;
  return Call{comm, send, bytes, recv, bytes, folding(comm, type, op, 0, count)}.give(stream);
}
int ncclReduceScatter(const void* send, void* recv, std::size_t count, int type, int op, Comm* comm,
                      void* stream) {
  if (!is_known(type, op)) return kInvalidArgument;
  const std::size_t bytes = count * kTypes[static_cast<std::size_t>(type)].bytes;
  const std::size_t at = bytes * static_cast<std::size_t>(comm->rank);
  return Call{comm, send,  bytes * static_cast<std::size_t>(comm->ranks),
              recv, bytes, folding(comm, type, op, at, count)}
      .give(stream);
}
int ncclAllGather(const void* send, void* recv, std::size_t count, int type, Comm* comm,
                  void* stream) {
  const std::size_t bytes = count * kTypes[static_cast<std::size_t>(type)].bytes;
  const auto finish = [=](std::byte* to) {
    for (int rank = 0; rank < comm->ranks; ++rank) {
      std::memcpy(to + bytes * static_cast<std::size_t>(rank), comm->slot(rank), bytes);
    }
    return true;
  };
  return Call{comm, send, bytes, recv, bytes * static_cast<std::size_t>(comm->ranks), finish}.give(
      stream);
}
int ncclBroadcast(const void* send, void* recv, std::size_t count, int type, int root, Comm* comm,
                  void* stream) {
  const std::size_t bytes = count * kTypes[static_cast<std::size_t>(type)].bytes;
  const auto finish = [=](std::byte* to) {
    std::memcpy(to, comm->slot(root), bytes);
    return true;
  };
  return Call{comm, send, comm->rank == root ? bytes : 0, recv, bytes, finish}.give(stream);
}

}  // extern "C"
