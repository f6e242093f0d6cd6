#include <dlfcn.h>

#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#include "base/errors.h"
#include "device/driver/owners.h"
#include "device/libraries/libraries.h"

namespace gradred::device {
namespace nccl {
namespace {

using CallKind = gradred::Kind;

// ---- the library, as its binary interface has it ----------------------------------------------

using Result = int;
constexpr Result kSuccess = 0, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;
using CommHandle = struct OpaqueNcclComm*;

struct UniqueId {
  std::byte bytes[128];
};

// The members of version 2.14. Later versions read no further members of a struct that gives this
// version.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

struct Functions {
  Result (*GetVersion)(int* version);
  const char* (*GetErrorString)(Result code);
  const char* (*GetLastError)(CommHandle comm);
  Result (*GetUniqueId)(UniqueId* id);
  Result (*CommInitRankConfig)(CommHandle* comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*CommGetAsyncError)(CommHandle comm, Result* error);
  Result (*CommAbort)(CommHandle comm);
  Result (*CommDestroy)(CommHandle comm);
  Result (*AllReduce)(const void* send, void* recv, std::size_t count, int type, int op,
                      CommHandle comm, StreamHandle stream);
  Result (*ReduceScatter)(const void* send, void* recv, std::size_t count, int type, int op,
                          CommHandle comm, StreamHandle stream);
  Result (*AllGather)(const void* send, void* recv, std::size_t count, int type, CommHandle comm,
                      StreamHandle stream);
  Result (*Broadcast)(const void* send, void* recv, std::size_t count, int type, int root,
                      CommHandle comm, StreamHandle stream);
  Result (*RedOpCreatePreMulSum)(int* op, void* factor, int type, int residence, CommHandle comm);
  Result (*RedOpDestroy)(int op, CommHandle comm);
};
constexpr int kHostImmediate = 1;
constexpr int kOldest = 21400;  // the first version with non-blocking communicators
// From this version on several ranks may share a device, if NCCL_MULTI_RANK_GPU_ENABLE is 1.
constexpr int kSharesDevices = 23000;

std::optional<int> type_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return 0;
    case DType::kUInt8:
      return 1;
    case DType::kInt32:
      return 2;
    case DType::kUInt32:
      return 3;
    case DType::kInt64:
      return 4;
    case DType::kUInt64:
      return 5;
    case DType::kFloat16:
      return 6;
    case DType::kFloat32:
      return 7;
    case DType::kFloat64:
      return 8;
    case DType::kBFloat16:
      return 9;
    default:
      return std::nullopt;
  }
}

std::optional<int> op_of(Op op) {
  switch (op) {
    case Op::kSum:
    case Op::kPremul:  // an operation with the factor is created for it
      return 0;
    case Op::kProd:
      return 1;
    case Op::kMax:
      return 2;
    case Op::kMin:
      return 3;
    case Op::kAvg:
      return 4;
    default:
      return std::nullopt;
  }
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// ---- a group ------------------------------------------------------------------------------------

class NcclGroup final : public LibraryGroup {
 public:
  NcclGroup(const CudaContext& context, const Functions& call, std::string name, int rank)
      : context_(context),
        call_(call),
        name_(std::move(name)),
        rank_(rank),
        stream_(context.driver()) {}
  ~NcclGroup() override {
    if (comm_ == nullptr) return;
    context_.if_alive(
        [this] { connected_ && !failed_ ? call_.CommDestroy(comm_) : call_.CommAbort(comm_); });
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Connects with the unique id in rank 0's ticket.
  void connect(std::span<const Ticket> all) override {
    const ScopedContext scope = context_.scope();
    UniqueId id;
    std::memcpy(&id, all.front().data(), sizeof id);
    Config config;
    const int ranks = static_cast<int>(all.size());
    check(call_.CommInitRankConfig(&comm_, ranks, id, rank_, &config), "ncclCommInitRankConfig");
  }

  bool is_connected() override {
    if (!connected_) {
      const ScopedContext scope = context_.scope();
      connected_ = !is_busy("to connect its ranks");
    }
    return connected_;
  }

  void start(const LibraryCall& given) override {
    const ScopedContext scope = context_.scope();
    const StreamHandle stream =
        given.stream ? reinterpret_cast<StreamHandle>(*given.stream) : stream_.get();
    const int type = type_of(given.dtype).value();
    const int op = given.op == Op::kPremul ? scaled_sum(given, type) : op_of(given.op).value_or(0);
    const std::size_t bytes = given.count * size_of(given.dtype);
    auto* const result = static_cast<std::byte*>(given.result);
    const void* const input = given.input;
    switch (given.kind) {
      case CallKind::kBcast:
        check(call_.Broadcast(result, result, given.count, type, given.root, comm_, stream),
              "ncclBroadcast");
        break;
      case CallKind::kAllgather:
        check(call_.AllGather(input, result, given.count, type, comm_, stream), "ncclAllGather");
        break;
      case CallKind::kReduceScatterBlock: {
        // In place, NCCL puts the result where this rank's block of the input is.
        const std::size_t at = input == result ? static_cast<std::size_t>(rank_) * bytes : 0;
        check(call_.ReduceScatter(input, result + at, given.count, type, op, comm_, stream),
              "ncclReduceScatter");
        if (at > 0) then_ = [=, this] { copy(stream, result, result + at, bytes); };
        break;
      }
      default:
        check(call_.AllReduce(input, result, given.count, type, op, comm_, stream),
              "ncclAllReduce");
    }
    if (given.op != Op::kPremul) return;
    then_ = [this, op, before = std::move(then_)] {
      if (before) before();
      check(call_.RedOpDestroy(op, comm_), "ncclRedOpDestroy");
    };
  }

  bool is_started() override {
    const ScopedContext scope = context_.scope();
    if (is_busy("a call")) return false;
    if (then_) std::exchange(then_, nullptr)();
    return true;
  }

  bool ready() override {
    const ScopedContext scope = context_.scope();
    if (is_busy("a call")) return false;
    return stream_.ready();
  }

  void abort() noexcept override {
    if (std::exchange(failed_, true) || comm_ == nullptr) return;
    context_.if_alive([this] { call_.CommAbort(std::exchange(comm_, nullptr)); });
  }

 private:
  bool is_busy(const char* what) {
    if (failed_) throw DeviceError(name_ + ": its ranks have been cut off");
    Result error = kSuccess;
    check(call_.CommGetAsyncError(comm_, &error), "ncclCommGetAsyncError");
    if (error == kInProgress) return true;
    check(error, what);
    return false;
  }
  int scaled_sum(const LibraryCall& given, int type) {
    alignas(8) std::byte factor[8]{};
    write_factor(given, factor);
    int op = 0;
    check(call_.RedOpCreatePreMulSum(&op, factor, type, kHostImmediate, comm_),
          "ncclRedOpCreatePreMulSum");
    return op;
  }
  static void write_factor(const LibraryCall& given, std::byte* to) {
    const auto write = [&](auto value) { std::memcpy(to, &value, sizeof value); };
    switch (given.dtype) {
      case DType::kFloat64:
        return write(given.factor);
      case DType::kFloat32:
        return write(static_cast<float>(given.factor));
      default: {  // 16-bit floats: one, times the factor
        const bool half = given.dtype == DType::kFloat16;
        const std::uint16_t unit = half ? 0x3c00 : 0x3f80;
        std::memcpy(to, &unit, sizeof unit);
        scale(to, 1, given.dtype, given.factor, false);
      }
    }
  }
  void copy(StreamHandle stream, void* target, const void* source, std::size_t bytes) const {
    context_.driver().check(
        context_.driver().call.MemcpyAsync(address_of(target), address_of(source), bytes, stream),
        "cuMemcpyAsync");
  }
  void check(Result code, const char* what) {
    if (code == kSuccess || code == kInProgress) return;
    std::string text = name_ + ": " + what + ": " + call_.GetErrorString(code);
    const char* const more = call_.GetLastError != nullptr ? call_.GetLastError(comm_) : nullptr;
    if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
    if (code == kInvalidUsage || code == kRemoteError) throw LibraryRefusal(text);
    throw DeviceError(text);
  }

  const CudaContext& context_;
  const Functions call_;
  const std::string name_;
  const int rank_;
  CudaStream stream_;
  CommHandle comm_ = nullptr;
  std::function<void()> then_;  // called when the call has been given to the device
  bool connected_ = false, failed_ = false;
};

class Nccl final : public CollectiveLibrary {
 public:
  Nccl(const CudaContext& context, void* library, const std::string& file, bool shares_devices)
      : context_(context), shares_devices_(shares_devices) {
    const auto find = [&](const char* name, auto& function, bool required = true) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          dlsym(library, (std::string("nccl") + name).c_str()));
      if (function == nullptr && required) {
        throw DeviceError(file + " has no nccl" + name + ": gradred needs NCCL " +
                          version_text(kOldest) + " or later");
      }
    };
    find("GetVersion", call_.GetVersion);
    find("GetErrorString", call_.GetErrorString);
    find("GetLastError", call_.GetLastError, false);
    find("GetUniqueId", call_.GetUniqueId);
    find("CommInitRankConfig", call_.CommInitRankConfig);
    find("CommGetAsyncError", call_.CommGetAsyncError);
    find("CommAbort", call_.CommAbort);
    find("CommDestroy", call_.CommDestroy);
    find("AllReduce", call_.AllReduce);
    find("ReduceScatter", call_.ReduceScatter);
    find("AllGather", call_.AllGather);
    find("Broadcast", call_.Broadcast);
    find("RedOpCreatePreMulSum", call_.RedOpCreatePreMulSum);
    find("RedOpDestroy", call_.RedOpDestroy);
    call_.GetVersion(&version_);
    if (version_ < kOldest) {
      throw DeviceError(file + " is " + name() + ": gradred needs " + version_text(kOldest) +
                        " or later");
    }
  }

  std::string name() const override { return "NCCL " + version_text(version_); }
  std::optional<std::string> why_not(Op op, DType dtype) override {
    if (!type_of(dtype)) return "NCCL has no " + std::string(name_of(dtype));
    if (!op_of(op)) return "NCCL has no operation '" + std::string(name_of(op)) + "'";
    const bool is_float = dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
                          dtype == DType::kFloat32 || dtype == DType::kFloat64;
    if (op == Op::kPremul && !is_float) {
      return "NCCL multiplies " + std::string(name_of(dtype)) + " by whole numbers alone";
    }
    return std::nullopt;
  }
  bool shares_devices() const override { return can_share_devices() && shares_devices_; }
  std::string one_rank_each() const override {
    const char* const unless = ", but where all of them have NCCL_MULTI_RANK_GPU_ENABLE=1";
    return CollectiveLibrary::one_rank_each() + (can_share_devices() ? unless : "");
  }
  std::unique_ptr<LibraryGroup> open(int rank, int, Ticket& ticket) override {
    const ScopedContext scope = context_.scope();
    if (rank == 0) {
      UniqueId id;
      const Result code = call_.GetUniqueId(&id);
      if (code != kSuccess) {
        throw DeviceError(name() + ": ncclGetUniqueId: " + call_.GetErrorString(code));
      }
      static_assert(sizeof id == sizeof ticket);
      std::memcpy(ticket.data(), &id, sizeof id);
    }
    return std::make_unique<NcclGroup>(context_, call_, name(), rank);
  }

 private:
  bool can_share_devices() const { return version_ >= kSharesDevices; }

  const CudaContext& context_;
  const bool shares_devices_;
  Functions call_{};
  int version_ = 0;
};

}  // namespace
}  // namespace nccl

std::unique_ptr<CollectiveLibrary> make_nccl(const CudaContext& context, const Options& options) {
  for (const int how : {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY}) {
    for (const std::string& name : options.collectives) {
      void* const library = dlopen(name.c_str(), how);
      if (library == nullptr) continue;
      return std::make_unique<nccl::Nccl>(context, library, name, options.nccl_shares_devices);
    }
  }
  const char* const why = dlerror();
  throw DeviceError("NCCL is not there: " + std::string(why != nullptr ? why : "no such library") +
                    ". Install it, for example pip install nvidia-nccl-cu13, or name it in "
                    "GRADRED_LIBNCCL");
}

}  // namespace gradred::device
