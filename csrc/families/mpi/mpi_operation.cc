// Calls that the MPI carries out by its nonblocking functions. The thread that waits for them looks
// for lost peers and time limits, and makes progress on everything else meanwhile.
//
// Blocking calls come here with plan "mpi". All nonblocking calls of a communicator come here
// before a blocking call has set up what gradred needs. Later nonblocking calls do so if they need
// messages and some rank allows no progress thread, or if the MPI has no duplicate for them.
//
// gradred cannot carry these out itself from the start. A duplicate for its messages would have to
// be made while the program goes on (MPI_Comm_idup). If a rank then makes another communicator,
// which its peers make before they come to this call, Open MPI hangs. Also, ranks that allow a
// progress thread would decide differently from ranks that do not. MPI_Iallreduce on the program's
// communicator is local, and the same on all ranks.
//
// Under GRADRED_DETERMINISTIC the MPI only moves the inputs, all of them to all ranks, and each
// rank reduces them in the order of ranks. The MPI itself may add in a different order each time.
#include "families/mpi/mpi_operation.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/failure.h"
#include "calls/member.h"
#include "calls/mpi_handles.h"
#include "calls/plan_choice.h"
#include "calls/why_not.h"
#include "engine/driving.h"
#include "engine/notices/comm_liveness.h"
#include "engine/notices/operation_log.h"
#include "engine/waiting.h"
#include "families/memory/node_path.h"
#include "families/memory/scaling.h"
#include "families/messages/agreement.h"
#include "liveness/first_calls.h"

namespace gradred {
namespace {

// Gathers what all ranks ask for, beside a call on which they have not agreed before. It is local
// at first, like the call. When it is done, the call may have been carried out as well.
class Comparison {
 public:
  struct Asked {
    Signature signature;
    std::int32_t root = 0;            // if the kind has one
    std::uint32_t deterministic = 0;  // if set, the MPI makes another call

    bool operator==(const Asked&) const = default;
    // Whether the MPI ends these calls if some ranks make the one and others the other.
    bool ends_beside(const Asked& other) const {
      return signature.what == other.signature.what && root == other.root &&
             deterministic == other.deterministic;
    }
  };

  explicit Comparison(const Member& member)
      : rank_(static_cast<std::size_t>(member.rank)),
        ranks_(static_cast<std::size_t>(member.size)) {}

  void begin(const Asked& asked, mpi::Handle comm) {
    const mpi::Mpi& mpi = mpi::get();
    auto all = std::make_unique<Asked[]>(ranks_);
    all[rank_] = asked;
    mpi.check(mpi.call.Iallgather(mpi.is.in_place, sizeof asked, mpi.is.byte_type, all.get(),
                                  sizeof asked, mpi.is.byte_type, comm, &request_),
              "MPI_Iallgather");
    all_ = std::move(all);
  }
  bool has_begun() const { return all_ != nullptr; }
  // Returns true when the comparison is done, or if none has begun.
  bool advance() {
    if (!has_begun() || done_) return true;
    const mpi::Mpi& mpi = mpi::get();
    int done = 0;
    mpi.check(mpi.call.Test(&request_, &done, mpi.is.status_ignore), "comparing a call");
    done_ = done != 0;
    return done_;
  }
  // The first entry of a rank that asks for something else; nullptr: none. Only once it is done.
  const Asked* other() const {
    if (!has_begun()) return nullptr;
    const auto* const found = std::find_if(all_.get(), all_.get() + ranks_,
                                           [this](const auto& one) { return one != all_[rank_]; });
    return found != all_.get() + ranks_ ? found : nullptr;
  }
  int rank_of(const Asked* other) const { return static_cast<int>(other - all_.get()); }
  bool is_open() const { return has_begun() && !done_; }
  void leak() noexcept { static_cast<void>(all_.release()); }  // the MPI may still write there

 private:
  const std::size_t rank_, ranks_;
  std::unique_ptr<Asked[]> all_;  // by rank
  mpi::Handle request_{};
  bool done_ = false;
};

class MpiOperation final : public StartedOperation {
 public:
  enum class Compared : bool { kNotYet, kBefore };

  // Whether the MPI adds, in an order of its own, or this rank adds in the order of ranks.
  enum class Sums : bool { kByMpi, kInOrder };

  MpiOperation(std::shared_ptr<const Parts> parts, const Call& call, Compared compared, Sums sums)
      : parts_(std::move(parts)),
        call_(call),
        begun_(parts_->liveness.count_on_mpi()),
        in_order_(sums == Sums::kInOrder),
        comparison_(parts_->member) {
    if (gathers()) gathered_ = std::make_unique_for_overwrite<std::byte[]>(input_bytes() * ranks());
    // Compares only if the MPI's own Wait also completes the comparison's request. All ranks decide
    // alike, because they have one MPI.
    const bool compares =
        compared == Compared::kNotYet && parts_->member.size > 1 && completes_inside_mpi();
    check_lengths();
    try {
      if (compares) comparison_.begin(asked(), parts_->member.comm);
      begin();
    } catch (...) {
      if (holds_memory()) withdraw();
      throw;
    }
  }

  std::string waiter() const override { return parts_->liveness.own_name(); }
  std::string waits_for() const override {
    return parts_->liveness.freed() ? name() : name() + unnumbered().missing();
  }
  WaitRecord wait_record() const override {
    return parts_->liveness.freed() ? unnumbered().call : unnumbered().record();
  }
  bool is_first_to_wait() const override {
    if (parts_->liveness.freed()) return true;
    return gradred::is_first_to_wait(known_local_peers(parts_->member.comm), parts_->member.rank,
                                     unnumbered().call);
  }
  bool spins() const override { return parts_->node_path.spins(); }
  UsedTransport used_transport() const override { return UsedTransport::kMpi; }
  // At MPI_THREAD_MULTIPLE the progress thread advances it, and MPI functions may hold the MPI's
  // locks here.
  bool may_advance_in_mpi() const override { return !thread_may_drive(); }
  bool holds_memory() const override {
    return comparison_.is_open() || std::ranges::any_of(requests_, is_open);
  }
  bool use_mpi_request() override {
    const bool all_of_it = requests_.size() == 1 && work_.empty() && !gathers() &&
                           !is_unsettled(call_) && !comparison_.has_begun();
    if (!all_of_it || call_.persistent) return false;
    set_mpi_request(mpi::get().normalise(requests_.front()));
    requests_.clear();
    return true;
  }

 protected:
  bool step() override {
    const mpi::Mpi& mpi = mpi::get();
    const bool compared = comparison_.advance();
    const Comparison::Asked* const other = compared ? comparison_.other() : nullptr;
    // The MPI can do nothing with different counts, types, operations or roots, and may never end
    // the call.
    if (other != nullptr && !other->ends_beside(asked())) disagree(*other);
    for (mpi::Handle& request : requests_) {
      int done = 0;  // Test reports a completed request, which is null, as done
      mpi.check(mpi.call.Test(&request, &done, mpi.is.status_ignore), "a non-blocking call");
      if (done == 0) {
        if (++looks_ % kStepsPerLook == 0) throw_if_lost();
        return false;
      }
    }
    if (!compared) {
      if (++looks_ % kStepsPerLook == 0) throw_if_lost();
      return false;
    }
    if (other != nullptr) disagree(*other);
    put_result();
    return true;
  }

  // MPI has no function that ends a collective operation: the MPI keeps the buffers that it was
  // given.
  void withdraw() noexcept override {
    if (is_over_on_mpi()) return;
    process_poisoned.store(true, std::memory_order_relaxed);
    static_cast<void>(new std::vector<std::byte>(std::move(work_)));
    static_cast<void>(gathered_.release());
    comparison_.leak();
  }

  void on_end(bool well) noexcept override {
    if (!well && !is_over_on_mpi()) parts_->liveness.fail(failure());
    if (call_.before() != nullptr) call_.before()->rest();
    StartedOperation::on_end(well);
  }

 private:
  static constexpr unsigned kStepsPerLook = 64;
  static constexpr std::size_t kGatheredBytes = std::size_t{1} << 30;  // of each rank in one call

  UnnumberedCall unnumbered() const {
    return {parts_->member.comm,
            parts_->liveness.names(),
            {.state = WaitRecord::State::kOnMpi,
             .ranks = static_cast<std::uint32_t>(parts_->member.size),
             .what = call_.signature().what}};
  }

  std::string name() const {
    return std::string(kCarriedByMpi) + " (" + describe_with_bytes(call_.signature()) + ")" +
           among(parts_->member.size);
  }

  Comparison::Asked asked() const {
    return {call_.signature(), has_root(call_.kind) ? call_.root : 0, in_order_ ? 1U : 0U};
  }

  [[noreturn]] void disagree(const Comparison::Asked& other) {
    disagrees_ = true;
    const int rank = comparison_.rank_of(&other);
    const RankNames& names = parts_->liveness.names();
    if (other.signature == call_.signature()) {
      throw UsageError("GRADRED_DETERMINISTIC is " + std::string(in_order_ ? "on" : "off") +
                       " on " + names.of(parts_->member.rank) + " and not on " + names.of(rank) +
                       ". For non-blocking calls before a blocking one set it alike on all ranks");
    }
    throw UsageError(disagreement_text(names.of(parts_->member.rank), call_.signature(),
                                       names.of(rank), other.signature));
  }
  // The ranks have disagreed, and the MPI has ended all that it was given: the communicator is as
  // usable as before.
  bool is_over_on_mpi() const { return disagrees_ && !holds_memory(); }

  static bool is_open(mpi::Handle request) {
    const mpi::Mpi& mpi = mpi::get();
    return mpi.normalise(request) != mpi.is.request_null;
  }

  mpi::Handle& new_request() { return requests_.emplace_back(mpi::get().is.request_null); }

  // The MPI's calls must be in the order of the program's calls, so none is made later.
  void begin() {
    while (call_.before() != nullptr && !call_.before()->ready()) sched_yield();
    const void* send = call_.in.data;
    if (call_.op == Op::kPremul && input_bytes() > 0) {
      const auto* input = static_cast<const std::byte*>(call_.input());
      work_.assign(input, input + input_bytes());
      scale_input(call_, work_.data(), input_count());
      send = work_.data();
    }
    gathers() ? gather(send) : post(send);
  }

  PlaceInCall place_in_call() const {
    return {parts_->member.rank, parts_->member.size, call_.root};
  }
  std::size_t ranks() const { return static_cast<std::size_t>(parts_->member.size); }
  std::size_t input_count() const {
    return call_.count * given_counts(call_.kind, place_in_call());
  }
  std::size_t input_bytes() const { return input_count() * size_of(call_.dtype); }
  bool gathers() const { return in_order_ && reduces(call_.kind); }

  // Calls the function of the MPI that carries out this kind of call.
  void post(const void* send) {
    if (reduces(call_.kind)) {
      reduce(send);
    } else if (has_blocks(call_.kind)) {
      move_blocks(send);
    } else {
      bcast();
    }
  }

  // Reduces in parts whose elements the MPI can count, if the vector can be cut.
  void reduce(const void* send) {
    const bool cuts = can_be_cut(call_.kind);
    const mpi::Mpi& mpi = mpi::get();
    const auto function = mpi.call.Ireductions[static_cast<std::size_t>(call_.kind)];
    const MpiHandles handles = mpi_or_own_handles(combined(call_.op), call_.dtype);
    const std::size_t element = size_of(call_.dtype), most = cuts ? kLargestMpiCount : INT_MAX;
    auto* recv = static_cast<std::byte*>(call_.out.data);
    for (std::size_t at = 0; at == 0 || at < call_.count; at += most) {
      const auto count = static_cast<int>(std::min(call_.count - at, most));
      const void* from =
          send == kInPlace ? mpi.is.in_place : static_cast<const std::byte*>(send) + at * element;
      mpi.check(function(from, recv + at * element, count, handles.type, handles.op,
                         parts_->member.comm, &new_request()),
                called_name().c_str());
    }
  }

  // Blocks are sent as bytes.
  void move_blocks(const void* send) {
    const mpi::Mpi& mpi = mpi::get();
    const auto kind = static_cast<std::size_t>(call_.kind);
    const auto bytes = static_cast<int>(call_.count * size_of(call_.dtype));
    const bool gives = given_counts(call_.kind, place_in_call()) > 0;
    const void* from = send != kInPlace ? send : gives ? mpi.is.in_place : nullptr;
    mpi::Handle& request = new_request();
    const mpi::Handle type = mpi.is.byte_type, comm = parts_->member.comm;
    const int code =
        has_root(call_.kind)
            ? mpi.call.Irooted_moves[kind](from, bytes, type, call_.out.data, bytes, type,
                                           call_.root, comm, &request)
            : mpi.call.Imoves[kind](from, bytes, type, call_.out.data, bytes, type, comm, &request);
    mpi.check(code, called_name().c_str());
  }

  std::string called_name() const { return "MPI_I" + std::string(name_of(call_.kind)); }

  // Before the MPI is given anything.
  void check_lengths() const {
    if (gathers() || can_be_cut(call_.kind)) return;
    if (reduces(call_.kind)) return check_length(call_.count, "elements");
    check_length(call_.count * size_of(call_.dtype), "bytes");
  }

  void check_length(std::size_t length, const char* what) const {
    if (length <= INT_MAX) return;
    throw UsageError("a non-blocking " + std::string(name_of(call_.kind)) +
                     " of more than 2^31 - 1 " + what +
                     " per rank, before a blocking call: make a blocking call on the communicator "
                     "first");
  }

  // In parts, as reduce().
  void bcast() {
    const mpi::Mpi& mpi = mpi::get();
    const std::size_t all = call_.count * size_of(call_.dtype);
    auto* const data = static_cast<std::byte*>(call_.out.data);
    for (std::size_t at = 0; at == 0 || at < all; at += kLargestMpiCount) {
      const auto bytes = static_cast<int>(std::min(all - at, kLargestMpiCount));
      mpi.check(mpi.call.Ibcast(data + at, bytes, mpi.is.byte_type, call_.root, parts_->member.comm,
                                &new_request()),
                "MPI_Ibcast");
    }
  }

  // Gathers the inputs of all ranks, in parts that the MPI can count: part by part, and rank by
  // rank inside a part.
  void gather(const void* send) {
    const mpi::Mpi& mpi = mpi::get();
    const std::size_t element = size_of(call_.dtype), most = gathered_at_once();
    const auto* from = static_cast<const std::byte*>(send != kInPlace ? send : call_.out.data);
    for (std::size_t at = 0; at == 0 || at < input_count(); at += most) {
      const auto bytes = static_cast<int>(std::min(input_count() - at, most) * element);
      mpi.check(mpi.call.Iallgather(from + at * element, bytes, mpi.is.byte_type,
                                    gathered_.get() + at * ranks() * element, bytes,
                                    mpi.is.byte_type, parts_->member.comm, &new_request()),
                "MPI_Iallgather");
    }
  }

  std::size_t gathered_at_once() const { return kGatheredBytes / size_of(call_.dtype); }

  // Reduces this rank's block of the gathered vector, or all of it.
  void reduce_in_order() {
    const std::size_t element = size_of(call_.dtype), most = gathered_at_once();
    const bool own_block = info_of(call_.kind).result == Part::kOwnBlock;
    const std::size_t first =
        own_block ? static_cast<std::size_t>(parts_->member.rank) * call_.count : 0;
    const ReduceFunctions* const reduction = find_reduction(call_.op, call_.dtype);
    const RankRange range = reduced_ranks(call_.kind, parts_->member.rank, parts_->member.size);
    if (range.count() == 0) return;
    std::vector<const void*> inputs(ranks());
    for (std::size_t done = 0; done < call_.count;) {
      const std::size_t part = (first + done) / most * most, inside = first + done - part;
      const std::size_t length = std::min(input_count() - part, most);
      const std::size_t count = std::min(length - inside, call_.count - done);
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        inputs[rank] = gathered_.get() + (part * ranks() + rank * length + inside) * element;
      }
      void* const target = static_cast<std::byte*>(call_.out.data) + done * element;
      const std::span<const void*> own(inputs.data() + range.first,
                                       static_cast<std::size_t>(range.count()));
      if (sums_differ(call_.kind)) {
        fold(*reduction, element, target, own, count);
      } else {
        reduction->many(target, own.data(), own.size(), count);
      }
      done += count;
    }
  }

  void put_result() {
    if (gathers()) reduce_in_order();
    gathered_.reset();
    settle_result(call_, call_.out.data, parts_->member.rank, parts_->member.size);
  }

  void throw_if_lost() { parts_->liveness.throw_if_lost_on_mpi(lost_, begun_); }

  const std::shared_ptr<const Parts> parts_;
  const Call call_;
  const std::uint64_t begun_;
  const bool in_order_;
  std::vector<std::byte> work_;            // the input times the factor
  std::unique_ptr<std::byte[]> gathered_;  // of all ranks
  std::vector<mpi::Handle> requests_;
  Comparison comparison_;
  bool disagrees_ = false;
  unsigned looks_ = 0;
  LostPeers lost_;
};

bool has_ended(const std::weak_ptr<StartedOperation>& one) {
  const auto operation = one.lock();
  return operation == nullptr || operation->ended();
}

std::shared_ptr<StartedOperation> start_on_mpi(const Parts& parts, const Call& call,
                                               MpiOperation::Compared compared,
                                               MpiOperation::Sums sums) {
  auto operation = std::make_shared<MpiOperation>(parts.owner.keep(parts), call, compared, sums);
  parts.on_mpi.add(operation);
  return operation;
}

// For input in device memory, which an MPI reads at once.
void wait_for_input(const Parts& parts, const Call& call, WaitHook& hook) {
  while (call.before() != nullptr && !call.before()->ready()) {
    hook.waiting();
    drive(parts.operation_log);
    sched_yield();
  }
}

}  // namespace

void OperationsOnMpi::add(const std::shared_ptr<StartedOperation>& operation) {
  const std::lock_guard lock(mutex_);
  std::erase_if(operations_, has_ended);
  operations_.push_back(operation);
}

void OperationsOnMpi::finish(WaitHook& hook) {
  while (true) {
    std::shared_ptr<StartedOperation> operation;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(operations_, has_ended);
      if (operations_.empty()) return;
      operation = operations_.front().lock();
    }
    if (operation != nullptr) see_through(*operation, hook);
  }
}

std::shared_ptr<StartedOperation> mpi_operation(const Parts& parts, const Call& call) {
  if (call.schedule) {
    const bool set_up = parts.agreed.set_up;
    if (set_up && parts.path == nullptr) throw UsageError(kNoneLeft);
    const bool is_own = call.schedule->leaves.empty();
    throw UsageError(
        std::string(is_own ? "a schedule of your own" : "leaves") +
        " and a non-blocking call that the MPI would carry out, in an order of its own: " +
        (set_up
             ? "on some rank the MPI was initialised below MPI_THREAD_MULTIPLE, or "
               "GRADRED_PROGRESS_THREAD is 0. Change that, or make blocking calls"
             : "no blocking call of gradred has set up the communicator. Make a blocking call on "
               "it first, for example Allreduce_init or Bcast"));
  }
  parts.liveness.throw_if_failed_before(kCarriedByMpi);
  // A persistent call was agreed on when it was made.
  const auto compared =
      call.persistent ? MpiOperation::Compared::kBefore : MpiOperation::Compared::kNotYet;
  const auto sums =
      parts.agreed.deterministic ? MpiOperation::Sums::kInOrder : MpiOperation::Sums::kByMpi;
  return start_on_mpi(parts, call, compared, sums);
}

void run_agreed_on_mpi(const Parts& parts, const Call& call, const Plan& plan, WaitHook& hook) {
  parts.agreement.agree(planned_signature(call, plan), hook);
  wait_for_input(parts, call, hook);
  if (call.count * size_of(call.dtype) > kLongWorkBytes) hook.long_work();
  const auto operation =
      start_on_mpi(parts, call, MpiOperation::Compared::kBefore, MpiOperation::Sums::kByMpi);
  wait_for(*operation, hook);  // unlike the MPI it looks for lost peers and time limits
}

}  // namespace gradred
