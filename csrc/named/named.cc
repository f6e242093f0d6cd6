#include "named/named.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/failure.h"
#include "base/free_blocks.h"
#include "base/signature.h"
#include "base/text.h"
#include "comm/set_up/host_calls.h"
#include "comm/shutdown_handshake.h"
#include "engine/fork_guard.h"
#include "named/memory_in_flight.h"
#include "named/work.h"
#include "reduce/reduce.h"

namespace gradred {
namespace {

// Replaces a PeerLost by one without a communicator: users of a front end have none to shrink.
std::exception_ptr without_shrink(const std::exception_ptr& reason) {
  try {
    std::rethrow_exception(reason);
  } catch (const PeerLost& error) {
    return std::make_exception_ptr(PeerLost(error.what()));
  } catch (...) {
    return reason;
  }
}

// What the progress thread advances while any named operation is in flight.
class Pump final : public Operation {
 public:
  explicit Pump(std::shared_ptr<NamedOperations> all) : all_(std::move(all)) {}

  std::string waiter() const override { return all_->own_name(); }
  std::string waits_for() const override { return "named operations"; }
  bool is_first_to_wait() const override { return false; }  // each operation reports for itself
  bool needs_no_mpi() const override { return all_->needs_no_mpi(); }
  bool spins() const override { return all_->comm().node_path().spins(); }

 protected:
  bool step() override {
    stop_at(all_->drive(caller(), nullptr));
    return all_->rests();
  }
  void give_up(const std::exception_ptr&) noexcept override {
    all_->close();
    all_->drive(Caller::kBusy, nullptr);
  }
  void withdraw() noexcept override {}

 private:
  const std::shared_ptr<NamedOperations> all_;
};

// "sum, min, max": the operations that elements of a type have.
std::string operations_of(DType dtype) {
  std::string text;
  for (const OpInfo& info : kOpInfo) {
    if (info.op == Op::kPremul || find_reduction(info.op, dtype) == nullptr) continue;
    text += (text.empty() ? "" : ", ") + std::string(info.name);
  }
  return text;
}

// Throws UsageError for arguments that no rank could carry out.
void validate(const Communicator& comm, const Submission& what,
              const std::vector<NamedArray>& arrays, const std::vector<std::int64_t>& splits) {
  const bool reduces = what.kind == NamedKind::kAllreduce || what.kind == NamedKind::kReduceScatter;
  for (const NamedArray& array : arrays) {
    if (!reduces) break;
    if (is_users(what.op)) {
      throw UsageError(std::string(name_of(what.kind)) +
                       ": named operations take gradred's own operations alone. Use "
                       "gradred.iallreduce for a function");
    }
    const Op op = what.op == Op::kAvg && comm.size() == 1 ? Op::kSum : what.op;
    const bool scaled = what.prescale != 1.0 || what.postscale != 1.0 || op == Op::kAvg;
    if (scaled && array.dtype == DType::kBool) {
      throw UsageError(std::string(name_of(what.kind)) +
                       ": bool cannot be averaged, or scaled by a factor");
    }
    if (find_reduction(op, array.dtype) == nullptr) {
      throw UsageError(std::string(name_of(what.kind)) + ": " + std::string(name_of(op)) +
                       " is not defined for " + std::string(name_of(array.dtype)) +
                       ". Use one of " + operations_of(array.dtype));
    }
    comm.by_tree(
        {.kind = what.kind == NamedKind::kAllreduce ? Kind::kAllreduce : Kind::kReduceScatterBlock,
         .dtype = array.dtype,
         .op = op,
         .wire = array.dtype == DType::kFloat32 ? what.wire : Wire::kNone});
  }
  if (what.kind == NamedKind::kBroadcast && (what.root < 0 || what.root >= comm.size())) {
    throw UsageError("broadcast: root rank " + std::to_string(what.root) + " is none of the " +
                     std::to_string(comm.size()) + " ranks");
  }
  if (what.kind != NamedKind::kAlltoall) return;
  if (arrays.size() != 1 || splits.size() != static_cast<std::size_t>(comm.size())) {
    throw UsageError("alltoall takes one array, and for each of the " +
                     std::to_string(comm.size()) + " ranks a number of rows");
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : splits) {
    if (split < 0) throw UsageError("alltoall: a rank cannot get less than no rows");
    sum += split;
  }
  if (sum != arrays[0].rows) {
    throw UsageError("alltoall: the array has " + std::to_string(arrays[0].rows) +
                     " rows, and the splits give out " + std::to_string(sum));
  }
}

}  // namespace

void add_array(Submission& what, std::vector<NamedArray>& arrays, NamedArray array,
               std::span<const std::int64_t> shape, std::span<const int> order) {
  array.rows = shape.empty() ? 0 : shape[0];
  const bool first = arrays.empty();
  if (first) {
    what.dtype = array.dtype;
    what.axes = static_cast<std::uint8_t>(std::min<std::size_t>(shape.size(), 255));
  }
  what.rest = mix(what.rest, static_cast<std::uint64_t>(array.dtype) << 8 | shape.size());
  if (array.on_device) what.on_device = 1;
  const bool gathers = what.kind == NamedKind::kAllgather || what.kind == NamedKind::kAlltoall;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::int64_t length = shape[i];
    if (first && i < Submission::kMostAxes) what.shape[i] = length;
    const bool compared = !(gathers && i == 0) && !(first && i < Submission::kMostAxes);
    if (compared) what.rest = mix(what.rest, static_cast<std::uint64_t>(length));
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool shown = first && i < Submission::kMostAxes;
    if (shown) what.order[i] = static_cast<std::uint8_t>(order[i]);
    if (!shown) what.rest = mix(what.rest, static_cast<std::uint64_t>(order[i]));
  }
  if (arrays.size() < Submission::kMostParts) what.counts[arrays.size()] = array.count;
  if (arrays.size() >= Submission::kMostParts || array.dtype != what.dtype) what.parts = 0;
  if (what.parts == arrays.size() && array.dtype == what.dtype) ++what.parts;
  what.bytes += array.bytes();
  arrays.push_back(std::move(array));
}

void finish_arrays(Submission& what, const std::vector<NamedArray>& arrays) {
  what.arrays = arrays.size();
  if (what.parts != arrays.size()) what.parts = 0;
}

// ---- one operation ------------------------------------------------------------------------------

OutBuffer NamedOperation::make_output(std::size_t array, std::size_t bytes, std::size_t input_at) {
  NamedArray& given = arrays_[array];
  const auto* const in = static_cast<const std::byte*>(given.in.data);
  auto* const out = static_cast<std::byte*>(given.out.data);
  const bool apart = in + given.bytes() <= out || out + bytes <= in;
  const bool fits = out != nullptr && bytes == given.out_bytes;
  given.filled = fits && (apart || (input_at != kNowhere && in == out + input_at));
  if (given.filled) return given.out;
  outputs.push_back(
      {std::make_shared_for_overwrite<std::byte[]>(std::max<std::size_t>(bytes, 1)), bytes});
  return {outputs.back().memory.get()};
}

void NamedOperation::record_uses() {
  const NamedKind kind = submission_.kind;
  const bool has_own_lengths = kind == NamedKind::kAllgather || kind == NamedKind::kAlltoall ||
                               kind == NamedKind::kReduceScatter;
  if (arrays_.size() > 1) uses_of_many_.resize(2 * arrays_.size());
  const std::span<MemoryUse> room =
      arrays_.size() > 1 ? std::span(uses_of_many_) : std::span<MemoryUse>(uses_of_one_);
  std::size_t count = 0;
  std::uint32_t place = 0;
  const auto add = [&](const void* data, std::size_t bytes, bool writes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    if (data != nullptr && bytes != 0) room[count++] = {begin, begin + bytes, writes, place};
  };
  for (const NamedArray& array : arrays_) {
    const std::size_t out_bytes = has_own_lengths ? array.out_bytes : array.bytes();
    if (array.in.data != array.out.data || array.bytes() > out_bytes) {
      add(array.in.data, array.bytes(), false);
    }
    add(array.out.data, out_bytes, true);
    ++place;
  }
  uses_ = room.first(count);
}

bool NamedOperation::shares_memory_with(const NamedOperation& other) const {
  return std::ranges::any_of(uses_, [&](const MemoryUse& mine) {
    return std::ranges::any_of(other.uses_, [&](const MemoryUse& its) {
      return mine.overlaps(its) && (mine.writes || its.writes);
    });
  });
}

std::string NamedOperation::quoted() const {
  return "'" + key_ + "'" + (all_->title().empty() ? "" : " of " + all_->title());
}

std::string NamedOperation::waiter() const { return all_->own_name(); }
std::string NamedOperation::waits_for() const { return all_->missing(*this); }
bool NamedOperation::needs_no_mpi() const { return all_->needs_no_mpi(); }
bool NamedOperation::spins() const { return all_->comm().node_path().spins(); }

bool NamedOperation::step() {
  if (!finished_.load(std::memory_order_acquire)) {
    const Progress last = all_->drive(caller(), this);
    if (!finished_.load(std::memory_order_acquire)) {
      stop_at(last);
      return false;
    }
  }
  if (failed_with_) std::rethrow_exception(failed_with_);
  return true;
}

void NamedOperation::precede(std::uint64_t stream) {
  DeviceMemory* device = nullptr;
  for (const NamedArray& array : arrays_) device = device != nullptr ? device : array.device();
  for (const auto& one : given_) device->precede(one->event(), stream);
  memory_in_flight().remove(*this);  // what the program's stream does next comes after it
}

void NamedOperation::give_up(const std::exception_ptr& reason) noexcept {
  all_->forget(*this, reason);
}

// ---- all of a communicator ----------------------------------------------------------------------

NamedOperations::NamedOperations(std::shared_ptr<Communicator> comm,
                                 std::shared_ptr<Segment> segment,
                                 const std::vector<int>& host_group, std::uint64_t most_fused_bytes)
    : comm_(std::move(comm)),
      result_log_(ResultLog::get(comm_->own_settings(), comm_->rank(), comm_->size())),
      segment_(std::move(segment)),
      alone_(segment_ == nullptr ? std::make_unique<Line[]>(Board::bytes(1) / sizeof(Line) + 1)
                                 : nullptr),
      board_(
          segment_ != nullptr ? segment_->data() + Segment::kProofBytes : alone_[0].bytes,
          host_group.size(),
          static_cast<std::size_t>(std::ranges::find(host_group, comm_->rank()) -
                                   host_group.begin()),
          most_fused_bytes, comm_->liveness().names().among(host_group),
          [this] { look_after_peers(); },
          host_group.size() < static_cast<std::size_t>(comm_->size())),
      memory_(memory_in_flight()) {}

NamedOperations::~NamedOperations() {
  close();
  // A forked child has no relay threads, so it must not wait for them.
  if (is_fork_of_rank()) static_cast<void>(relay_.release());
}

std::shared_ptr<NamedOperation> NamedOperations::submit(std::string name, const Submission& what,
                                                        std::vector<NamedArray> arrays,
                                                        std::vector<std::int64_t> splits,
                                                        NamedTexts texts) {
  require_rank();
  validate(*comm_, what, arrays, splits);
  auto operation = std::allocate_shared<NamedOperation>(
      PoolAllocator<NamedOperation>(), shared_from_this(), std::move(name), what, std::move(arrays),
      std::move(splits), std::move(texts));
  submit(operation);
  return operation;
}

void NamedOperations::expect_entry_of(const Shared& operation) {
  const bool is_new = agreed_on_.emplace(*operation->place_, operation).second;
  check(is_new, "a place is given away before this rank has taken its last entry");
}

// Adds the operation's memory to what is in flight, so that it follows the operations that use the
// same memory. Those of this communicator are carried out in the order on which the ranks agree.
// Returns whether there are some of other communicators: with these the ranks agree on no order, so
// they have to end before the other ranks learn of this operation.
bool NamedOperations::add_memory(NamedOperation& operation) {
  const MemoryInFlight::Shared shared = memory_.add(operation);
  if (const auto [one, other] = shared.itself; one != other) {
    throw UsageError("submitting " + operation.quoted() + ": arrays " + std::to_string(one) +
                     " and " + std::to_string(other) +
                     " of its group use the same memory, and one of them is written there. Give "
                     "each array once, or a copy");
  }
  if (shared.with_own) {
    operation.submission_.form = operation.submitted_as_ = NamedForm::kAlone;
    sharing_.fetch_add(1, std::memory_order_relaxed);
  }
  return shared.with_others;
}

// Its name and its memory may be used again. Called under intake_.
void NamedOperations::release(NamedOperation& operation) {
  keys_.erase(operation.key());
  memory_.remove(operation);
  if (operation.shares_memory()) sharing_.fetch_sub(1, std::memory_order_relaxed);
}

void NamedOperations::submit(const Shared& operation) {
  bool drives = false;
  {
    const std::lock_guard lock(intake_);
    const std::uint64_t begin_ns = timeline_ == nullptr ? 0 : now_ns();
    if (failure_) std::rethrow_exception(failure_);
    if (joining_ != nullptr) {
      throw UsageError("submitting " + operation->quoted() +
                       ": this rank has joined, and takes part with zeros until all have. Wait "
                       "for the join first");
    }
    if (!keys_.insert(operation->key()).second) {
      throw UsageError("submitting " + operation->quoted() +
                       ": an operation of this name has been submitted and has not ended. Wait "
                       "for it first, or give this one another name");
    }
    try {
      if (operation->submission().kind == NamedKind::kJoin) {
        join_waits_ = !backlog_.empty() || !held_.empty();
        if (!join_waits_) board_.join();
        joining_ = operation;
      } else if (add_memory(*operation)) {
        held_.push_back(operation);
        any_postponed_ = true;
      } else {
        operation->place_ =
            backlog_.empty()
                ? board_.arrive(operation->key(), operation->submission(), operation->texts_)
                : std::nullopt;
        if (operation->place_) {
          expect_entry_of(operation);
        } else {
          backlog_.push_back(operation);
          any_postponed_ = true;
        }
      }
    } catch (const HasLeft& left) {
      release(*operation);
      std::rethrow_exception(loss(left.what()));
    } catch (...) {
      release(*operation);
      throw;
    }
    ++in_flight_;
    drives = !std::exchange(driven_, true);
    if (timeline_ != nullptr) {
      const NamedKind kind = operation->submission().kind;
      timeline_->submitted(timeline_prefix_ + operation->key(), kind, rank(), begin_ns);
    }
  }
  if (relay_ != nullptr) {
    relay_->carry(true);
    busy_ns_.store(now_ns(), std::memory_order_relaxed);
  }
  if (drives) {
    let_drive(std::make_shared<Pump>(shared_from_this()));
  } else {
    engine().count_more(operation->submission().bytes);
  }
}

void NamedOperations::refuse(std::string name, std::string why) noexcept {
  try {
    Submission what;
    what.kind = NamedKind::kRefusal;
    submit(std::move(name), what, {}, {}, {.why_refused = std::move(why)})->reported();
  } catch (...) {  // this rank has an error to report already
  }
}

std::shared_ptr<NamedOperation> NamedOperations::join() {
  require_rank();
  Submission what;
  what.kind = NamedKind::kJoin;
  auto operation = std::make_shared<NamedOperation>(
      shared_from_this(), "join", what, std::vector<NamedArray>{}, std::vector<std::int64_t>{});
  submit(operation);
  return operation;
}

void NamedOperations::write_to(std::shared_ptr<Timeline> timeline, std::string prefix) {
  if (is_fork_of_rank()) return;
  const std::lock_guard lock(intake_);
  timeline_ = std::move(timeline);
  timeline_prefix_ = std::move(prefix);
  board_.see_in_order(timeline_ != nullptr);
}

// Writes the operation's end to the timeline. Called under intake_.
void NamedOperations::tell_timeline(const NamedOperation& operation,
                                    const std::exception_ptr& failure) const {
  if (timeline_ == nullptr) return;
  timeline_->ended(timeline_prefix_ + operation.key(), operation.submission(), operation.times_,
                   failure ? report_of(failure).text : std::string());
}

void NamedOperations::close() noexcept {
  closed_.store(true, std::memory_order_relaxed);
  leave(has_exit_reason() ? how_it_leaves()
                          : "has left: its operations have been shut down, as shutdown(), "
                            "reconfigure() and the end of a program do");
  if (relay_ != nullptr && !is_fork_of_rank()) relay_->settle();
}

// The error with which operations end after a rank has left, which may be this rank.
std::exception_ptr NamedOperations::loss(const std::string& text) const {
  if (closed_.load(std::memory_order_relaxed)) return std::make_exception_ptr(Error(text));
  return std::make_exception_ptr(PeerLost(text));
}

void NamedOperations::look_for_lost(std::string_view where) const {
  comm_->liveness().throw_if_lost(where);
  if (comm_->node_only() && comm_->node_path().serves_all())
    comm_->node_path().node()->check_peers();
}

void NamedOperations::leave(const std::string& how, std::optional<Failure> failure) noexcept {
  if (is_fork_of_rank()) return;  // a forked child that exits is not a rank that leaves
  try {
    const std::lock_guard lock(intake_);
    board_.leave(own_name() + " " + how, failure);
  } catch (...) {
    // A peer's process has ended while it held the board's lock, so all ranks learn of it.
  }
  if (relay_ != nullptr) relay_->carry();
}

bool NamedOperations::rests() {
  const std::lock_guard lock(intake_);
  if (in_flight_ != 0 || !finished_.empty()) return false;
  driven_ = false;
  return true;
}

std::string NamedOperations::missing(const NamedOperation& operation) {
  std::vector<std::string> ranks;
  try {
    const std::lock_guard lock(intake_);
    if (operation.place_) ranks = board_.missing(*operation.place_);
  } catch (const Error&) {
    // This text is only for a message; the thread that waits gets the error.
  }
  std::string text = "the named operation " + operation.quoted();
  const std::string before = memory_in_flight().before(operation);
  if (!before.empty()) text += ", which waits for " + before + ", as both use the same memory";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? ", which has not been submitted by " : ", ") + ranks[i];
  }
  return text;
}

// ---- the end ------------------------------------------------------------------------------------

void NamedOperations::forget(NamedOperation& operation, const std::exception_ptr& reason) noexcept {
  if (operation.finished_.load(std::memory_order_acquire)) return;
  const std::lock_guard driving(driving_);
  {
    const std::lock_guard lock(intake_);
    const auto found = operation.place_ ? agreed_on_.find(*operation.place_) : agreed_on_.end();
    // A timeout ends the operation on all ranks.
    const bool timed_out = report_of(reason).kind == Failure::kTimeout;
    bool taken_back = false;
    try {
      const bool is_held = !timed_out && std::erase_if(held_, [&](const Shared& one) {
                                           return one.get() == &operation;
                                         }) != 0;
      taken_back =
          is_held || (!timed_out && found != agreed_on_.end() && board_.retract(found->first));
    } catch (const Error&) {
      // A peer's process has ended, and fail() reports it.
    }
    if (taken_back) {
      if (found != agreed_on_.end()) agreed_on_.erase(found);
      tell_timeline(operation, reason);
      release(operation);
      operation.finished_.store(true, std::memory_order_release);
      --in_flight_;
      return;
    }
  }
  fail(reason);
}

// Ends all operations: after an error the ranks might carry out different calls.
void NamedOperations::fail(const std::exception_ptr& reason) noexcept {
  std::vector<Shared> over;
  const std::exception_ptr reported = without_shrink(reason);
  {
    const std::lock_guard lock(intake_);
    if (!failure_) failure_ = reported;
    for (auto& [place, operation] : agreed_on_) over.push_back(std::move(operation));
    over.insert(over.end(), backlog_.begin(), backlog_.end());
    over.insert(over.end(), held_.begin(), held_.end());
    if (joining_ != nullptr) over.push_back(std::exchange(joining_, nullptr));
    agreed_on_.clear();
    backlog_.clear();
    held_.clear();
  }
  for (auto& work : works_) {
    const bool holds_memory = !work->abandon(reason);
    for (const NamedPart& part : work->parts()) {
      if (part.operation == nullptr) continue;
      part.operation->holds_memory_ |= holds_memory;
      over.push_back(part.operation);
    }
    if (holds_memory) static_cast<void>(work.release());  // a device, or the MPI, may still use it
  }
  works_.clear();
  under_way_ = 0;
  for (const Shared& operation : over) {  // an operation with several chunks occurs several times
    if (!operation->finished_.load(std::memory_order_relaxed)) finish(operation, reported);
  }
  const FailureReport report = first_report_of(reason);
  // This notifies the other ranks.
  if (is_usage_error(reason)) return leave("has failed: " + report.text);
  if (segment_ != nullptr) comm_->node_path().group()->poison(report);
  comm_->liveness().fail(reason);
  leave("has failed: " + report.text, report.kind);
}

}  // namespace gradred
