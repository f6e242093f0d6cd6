#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "device/driver/cuda_context.h"
#include "device/ipc/exported.h"
#include "device/kernels/arguments.h"
#include "device/kernels/kernels.h"
#include "device/kernels/loaded_kernels.h"
#include "device/libraries/libraries.h"
#include "device/streams/pinned_memory.h"

namespace gradred::device {
namespace {

using gradred_kernels::kMostInputs;
using gradred_kernels::kMostShotBlocks;
using gradred_kernels::ShotArguments;

enum class Shots : std::uint8_t { kOne, kTwo };

// Bytes of a slot. A longer call takes several turns.
constexpr std::size_t room_of(Shots shots) {
  return shots == Shots::kOne ? std::size_t{256} << 10 : std::size_t{4} << 20;
}

// What a rank reports after it has tried to open all others' memory.
constexpr std::uint32_t kReaches = 1, kCannotReach = 2;

// The layout of one rank's memory: its report, its flags, and its slots for even and odd turns.
struct Layout {
  Layout(Shots shots, std::size_t ranks)
      : flags(rounded(sizeof(unsigned) * kMostShotBlocks * ranks)), room(room_of(shots)) {}

  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  static constexpr std::size_t kSays = 256;
  std::size_t met() const { return kSays; }
  std::size_t left() const { return kSays + flags; }
  std::size_t input(unsigned turn) const { return kSays + 2 * flags + turn % 2 * 2 * room; }
  std::size_t sums(unsigned turn) const { return input(turn) + room; }
  std::size_t bytes() const { return kSays + 2 * flags + 4 * room; }

  std::size_t flags, room;
};

// Contents of a ticket.
struct Described {
  IpcHandle handle;
  std::uint64_t offset;
};

// The time after which peers' memory is opened even if a stream may be waiting for peers.
constexpr std::uint64_t kOpensAfterNs = 1'000'000'000;

class ShotsGroup final : public LibraryGroup {
 public:
  ShotsGroup(const CudaParts& parts, Shots shots, int rank, int ranks, Ticket& ticket)
      : parts_(parts),
        shots_(shots),
        rank_(static_cast<std::size_t>(rank)),
        layout_(shots, static_cast<std::size_t>(ranks)),
        own_(parts.exported, layout_.bytes()),
        imported_(static_cast<std::size_t>(ranks)),
        begins_(static_cast<std::size_t>(ranks)),
        words_(parts.context.driver(), layout_.input(0)),
        stream_(parts.context.driver()),
        last_(parts.context.driver()) {
    std::memset(words_.get(), 0, layout_.input(0));
    begins_[rank_] = address_of(own_.get());
    stream_.copy(begins_[rank_], address_of(words_.get()), layout_.input(0));
    stream_.synchronize();
    const SharedPlace place = parts.exported.find(own_.get(), layout_.bytes());
    const Described mine{parts.exported.block_of(place).handle, place.offset()};
    static_assert(sizeof mine <= sizeof ticket);
    std::memcpy(ticket.data(), &mine, sizeof mine);
  }

  // Peers may still read the memory, unless all of them have left the last turn.
  ~ShotsGroup() override {
    const bool alive = parts_.context.if_alive([this] {
      if (turn_ > 0 && (cut_off_ || !all_have_left())) keep_all();
      if (cancelled().load() != 0) words_.keep_for_ever();
      for (ImportedAllocation& one : imported_) parts_.host.free_later(std::move(one));
    });
    if (!alive) words_.keep_for_ever();
  }
  ShotsGroup(const ShotsGroup&) = delete;
  ShotsGroup& operator=(const ShotsGroup&) = delete;

  void connect(std::span<const Ticket> all) override {
    tickets_.assign(all.begin(), all.end());
    since_ns_ = now_ns();
  }

  // Connected once all other ranks have reported success. Opening their memory may stop the device,
  // so it waits until no call in the order of a stream is open. It does not wait for ever, because
  // such a call may in turn wait for a rank that is connecting.
  bool is_connected() override {
    const auto reach = [this] { reach_all(); };
    if (!tickets_.empty() && !parts_.gate.while_none_is_open(reach)) {
      if (now_ns() - since_ns_ < kOpensAfterNs) return false;
      reach();
    }
    if (!why_not_.empty()) {
      throw UsageError("plan '" + name() + "' cannot serve this communicator: rank " +
                       std::to_string(rank_) + ": " + why_not_);
    }
    if (reported_ == begins_.size()) return true;
    const ScopedContext scope = parts_.context.scope();
    if (!last_.ready()) return false;
    for (; asked_ && reported_ < begins_.size(); ++reported_) {
      if (word(reported_) == 0) break;
      if (word(reported_) == kReaches) continue;
      throw UsageError("plan '" + name() + "' cannot serve this communicator: rank " +
                       std::to_string(reported_) + " cannot reach the memory of all ranks' GPUs");
    }
    if (reported_ == begins_.size()) return true;
    for (std::size_t peer = reported_; peer < begins_.size(); ++peer) {
      stream_.copy(address_of(&word(peer)), begins_[peer], sizeof(std::uint32_t));
    }
    last_.record(stream_.get());
    asked_ = true;
    return false;
  }

  // Opens all peers' memory, and reports where peers can read it whether that succeeded.
  void reach_all() {
    const ScopedContext scope = parts_.context.scope();
    const std::vector<Ticket> all = std::exchange(tickets_, {});
    try {
      for (std::size_t peer = 0; peer < all.size(); ++peer) {
        if (peer == rank_) continue;
        Described theirs{};
        std::memcpy(&theirs, all[peer].data(), sizeof theirs);
        imported_[peer] = ImportedAllocation(parts_.context.driver(), theirs.handle);
        begins_[peer] = imported_[peer].get() + theirs.offset;
      }
    } catch (const DeviceError& error) {
      why_not_ = error.what();
    }
    word(0) = why_not_.empty() ? kReaches : kCannotReach;
    stream_.copy(begins_[rank_], address_of(words_.get()), sizeof(std::uint32_t));
    last_.record(stream_.get());
  }

  void start(const LibraryCall& call) override {
    const ScopedContext scope = parts_.context.scope();
    if (cut_off_) throw DeviceError(name() + ": its ranks have been cut off");
    const StreamHandle stream =
        call.stream ? reinterpret_cast<StreamHandle>(*call.stream) : stream_.get();
    // Turns are executed one after the other, even in different streams.
    parts_.context.driver().check(
        parts_.context.driver().call.StreamWaitEvent(stream, last_.get(), 0), "cuStreamWaitEvent");
    const std::size_t element = size_of(call.dtype), most = layout_.room / element;
    for (std::size_t at = 0; at < call.count; at += most) {
      const std::size_t begin = at * element;
      ShotArguments arguments = arguments_of(call);
      arguments.input = static_cast<const std::byte*>(call.input) + begin;
      arguments.result = static_cast<std::byte*>(call.result) + begin;
      arguments.count = std::min(most, call.count - at);
      blocks_ = parts_.kernels.kernels().launch(stream, ShotCall{.op = combined(call.op),
                                                                 .dtype = call.dtype,
                                                                 .two = shots_ == Shots::kTwo,
                                                                 .arguments = arguments});
    }
    last_.record(stream);
  }
  bool is_started() override { return true; }
  bool ready() override {
    const ScopedContext scope = parts_.context.scope();
    return stream_.ready();
  }

  // Kernels that wait see the flag and end.
  void abort() noexcept override {
    cut_off_ = true;
    cancelled().store(1);
  }

 private:
  static Op combined(Op op) { return op == Op::kAvg || op == Op::kPremul ? Op::kSum : op; }
  std::string name() const { return shots_ == Shots::kOne ? "one_shot" : "two_shot"; }
  std::uint32_t& word(std::size_t peer) const {
    return static_cast<std::uint32_t*>(words_.get())[peer];
  }
  // This word follows those for the reports of ranks.
  std::atomic_ref<std::uint32_t> cancelled() const { return std::atomic_ref(word(kMostInputs)); }

  ShotArguments arguments_of(const LibraryCall& call) {
    ++turn_;
    ShotArguments made{};
    for (std::size_t peer = 0; peer < begins_.size(); ++peer) {
      const Address begin = begins_[peer];
      made.inputs[peer] = reinterpret_cast<void*>(begin + layout_.input(turn_));
      made.sums[peer] = reinterpret_cast<void*>(begin + layout_.sums(turn_));
      made.met[peer] = reinterpret_cast<unsigned*>(begin + layout_.met());
      made.left[peer] = reinterpret_cast<unsigned*>(begin + layout_.left());
    }
    made.cancelled = &word(kMostInputs);
    made.factor = call.factor;
    made.rank = static_cast<unsigned>(rank_);
    made.ranks = static_cast<unsigned>(begins_.size());
    made.turn = turn_;
    made.scaled = call.op == Op::kPremul ? 1 : 0;
    made.averaged = call.op == Op::kAvg ? 1 : 0;
    return made;
  }

  // Whether all ranks have left the last turn. Waits up to five seconds for that, and for this
  // rank's own work on its device.
  bool all_have_left() noexcept {
    constexpr std::uint64_t kPatienceNs = 5'000'000'000;
    const std::uint64_t begin = now_ns();
    const auto in_time = [&] { return now_ns() - begin < kPatienceNs; };
    try {
      while (!last_.ready()) {
        if (!in_time()) cancelled().store(1);
        std::this_thread::yield();
      }
      const std::size_t first = layout_.left() / sizeof(unsigned);
      const std::size_t count = kMostShotBlocks * begins_.size();
      while (in_time()) {
        stream_.copy(address_of(&word(first)), begins_[rank_] + layout_.left(),
                     count * sizeof(unsigned));
        stream_.synchronize();
        bool all = true;
        for (std::size_t peer = 0; peer < begins_.size(); ++peer) {
          for (std::size_t block = 0; block < blocks_; ++block) {
            all &= word(first + peer * kMostShotBlocks + block) == turn_;
          }
        }
        if (all) return true;
        std::this_thread::yield();
      }
    } catch (const DeviceError&) {  // the device has failed; the memory is then never freed
    }
    return false;
  }

  void keep_all() noexcept {
    own_.keep_for_ever();
    for (ImportedAllocation& one : imported_) one.keep_for_ever();
  }

  const CudaParts& parts_;
  const Shots shots_;
  const std::size_t rank_;
  const Layout layout_;
  ExportedRange own_;
  std::vector<ImportedAllocation> imported_;
  std::vector<Ticket> tickets_;  // of peers whose memory is not open yet
  std::vector<Address> begins_;  // address of each rank's memory
  PinnedAllocation words_;       // host memory that kernels read
  std::uint64_t since_ns_ = 0;   // since when tickets_ are set
  CudaStream stream_;
  CudaEvent last_;  // recorded behind all work of the group
  std::string why_not_;
  std::size_t reported_ = 0;  // number of ranks that have reported success
  bool asked_ = false, cut_off_ = false;
  unsigned turn_ = 0;
  std::size_t blocks_ = 0;  // of the last launch
};

class ShotsLibrary final : public CollectiveLibrary {
 public:
  ShotsLibrary(const CudaParts& parts, Shots shots) : parts_(parts), shots_(shots) {}

  std::string name() const override { return "a kernel that waits for its peers"; }
  std::optional<std::string> why_not(Op op, DType dtype) override {
    const std::string why = Kernels::why_not(op, dtype);
    if (!why.empty()) return why;
    try {
      const ScopedContext scope = parts_.context.scope();
      parts_.kernels.kernels().prepare(op, dtype, true);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return std::nullopt;
  }
  // A kernel in a graph would not wait when the graph runs again, because its turn is over.
  void check_stream(std::uint64_t stream) override {
    const ScopedContext scope = parts_.context.scope();
    parts_.context.require_live(stream);
  }
  bool shares_devices() const override { return false; }
  std::unique_ptr<LibraryGroup> open(int rank, int ranks, Ticket& ticket) override {
    if (ranks > static_cast<int>(kMostInputs)) {
      throw DeviceError("such a kernel reads the memory of at most " + std::to_string(kMostInputs) +
                        " ranks");
    }
    const ScopedContext scope = parts_.context.scope();
    return std::make_unique<ShotsGroup>(parts_, shots_, rank, ranks, ticket);
  }

 private:
  const CudaParts& parts_;
  const Shots shots_;
};

}  // namespace

std::unique_ptr<CollectiveLibrary> make_one_shot(const CudaParts& parts) {
  return std::make_unique<ShotsLibrary>(parts, Shots::kOne);
}

std::unique_ptr<CollectiveLibrary> make_two_shot(const CudaParts& parts) {
  return std::make_unique<ShotsLibrary>(parts, Shots::kTwo);
}

}  // namespace gradred::device
