// Advances named operations: submits them to the board, takes the log's entries, and runs the calls
// for them.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/failure.h"
#include "named/memory_in_flight.h"
#include "named/named.h"
#include "named/work.h"

namespace gradred {
namespace {

// Interval of checks whether the peers' processes still run.
constexpr std::uint64_t kLookEveryNs = 20'000'000;
// How long a waiting thread reads the sockets itself after the last submission or message.
constexpr std::uint64_t kLookAtSocketsNs = 200'000;

}  // namespace

Progress NamedOperations::drive(Operation::Caller caller, const Operation* except) {
  std::unique_lock lock(driving_, std::defer_lock);
  if (caller == Operation::Caller::kPatient) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return {Progress::State::kTaken, {}};
  }
  caller_advances_ = except;
  try {
    go_on(except != nullptr);
  } catch (...) {
    fail(std::current_exception());
  }
  caller_advances_ = nullptr;
  publish_given();
  const Progress stopped = where(except != nullptr);
  lock.unlock();
  const bool all_reported = advance_finished(except);
  return all_reported ? stopped : Progress{Progress::State::kPolls, {}};
}

void NamedOperations::go_on(bool waits) {
  publish_backlog();
  if (waits && must_watch() && comm_->node_path().spins()) look_for_peers();
  for (bool more = true; more;) {
    const bool wanted = wants_work();
    const bool took = (board_.any(wanted) || must_watch()) && take_entries();
    if (relay_ != nullptr) {
      const bool looks = waits && works_.empty();
      if (!looks) relay_->carry();
      if (looks && relay_->look()) busy_ns_ = now_ns();
    }
    run_works();
    more = ((took || !wanted) && board_.any(wants_work())) || must_watch();
  }
  // This comes last: after a rank has done its part and left, operations that do not need it still
  // succeed.
  const bool left = board_.any_left();
  const std::uint64_t now = now_ns();
  if (left || now - looked_ns_ > kLookEveryNs) {
    looked_ns_ = now;
    comm_->liveness().throw_if_failed();
    // A rank that has left may have done so because it failed.
    if (waits_for_ranks()) look_after_peers();
  }
  if (left) end_what_is_left_over();
}

// Peers often come at the same time. To become a watcher takes the lock that they need to arrive.
void NamedOperations::look_for_peers() const {
  constexpr int kLooks = 300;  // about a microsecond
  for (int look = 0; look < kLooks && !board_.any(); ++look) {
  }
}

// Whether this rank may have to wait for names, so that it must become a watcher.
bool NamedOperations::must_watch() const {
  return works_.empty() && !board_.is_watching() && in_flight_ != 0;
}

// Whether this rank waits for a name that not all ranks have submitted. Calls that are already
// running check their peers themselves.
bool NamedOperations::waits_for_ranks() {
  const std::lock_guard lock(intake_);
  const bool any =
      !agreed_on_.empty() || !backlog_.empty() || !held_.empty() || joining_ != nullptr;
  return any && !board_.any();
}

// A rank wants more work only while it has less than two chunks: names that become ready later may
// be more urgent. With two, a rank that has finished its chunk continues with the next while its
// peers are still busy.
bool NamedOperations::wants_work() const { return under_way_ < 2 * Submission::kChunkBytes; }

void NamedOperations::look_after_peers() {
  comm_->liveness().throw_if_failed();
  if (const NodeGroup* const group = comm_->node_path().group()) group->check_peers();
  if (comm_->node_path().serves_all()) return;
  {
    const std::lock_guard lock(noted_mutex_);
    if (noted_) throw_report(*noted_, false);
  }
  comm_->liveness().throw_if_lost("named operations");
}

void NamedOperations::note_failure(const FailureReport& report) {
  {
    const std::lock_guard lock(noted_mutex_);
    noted_ = report;
  }
  if (NodeGroup* const group = comm_->node_path().group()) group->poison(report);
}

void NamedOperations::publish_backlog() try {
  if (!any_postponed_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(intake_);
  std::erase_if(held_, [this](const Shared& one) {
    const bool is_free = memory_in_flight().before(*one).empty();
    if (is_free) backlog_.push_back(one);
    return is_free;
  });
  while (!backlog_.empty()) {
    const Shared& next = backlog_.front();
    next->place_ = board_.arrive(next->key(), next->submission(), next->texts_);
    if (!next->place_) return;
    expect_entry_of(next);
    backlog_.pop_front();
  }
  if (held_.empty() && std::exchange(join_waits_, false)) board_.join();
  any_postponed_ = !held_.empty();
} catch (const HasLeft&) {
  // What is left over ends with an error after the operations that all ranks have submitted.
}

bool NamedOperations::take_entries() {
  bool any = false;
  std::vector<std::pair<Shared, std::string>> refused;
  {
    const std::lock_guard lock(intake_);
    const std::uint64_t now = timeline_ == nullptr ? 0 : now_ns();
    board_.take(wants_work(), must_watch(), entries_);
    for (Board::Entry& entry : entries_) {
      any = true;
      Shared mine;
      if (entry.is_join()) {
        mine = std::exchange(joining_, nullptr);
        if (mine != nullptr) mine->last_joined = entry.last_joined;
      } else if (const auto found = agreed_on_.find(entry.place); found != agreed_on_.end()) {
        mine = found->second;
        mine->submission_.priority = entry.priority;
        mine->submission_.form = entry.form;
        if (entry.is_last_chunk) agreed_on_.erase(found);
      } else {
        check(joining_ != nullptr, "only a rank that has joined takes part with zeros");
      }
      if (mine != nullptr && now != 0 && entry.chunk == 0) {
        mine->times_ = {.agreed_ns = now, .last_rank = entry.last};
      }
      if (now != 0 && !entry.joins && entry.chunk == 0) timeline_->batch_began(now);
      if (!entry.problem.empty()) {
        if (mine != nullptr) refused.emplace_back(std::move(mine), std::move(entry.problem));
        continue;
      }
      add_work({std::move(mine), std::move(entry.submission), entry.chunk}, entry.joins);
      if (now != 0) works_.back()->note_start();
    }
  }
  for (auto& [operation, problem] : refused) {
    const std::string asked = operation->quoted() + " (on this rank " +
                              describe(comm_->liveness().names(), operation->submission()) + "): ";
    finish(operation, std::make_exception_ptr(UsageError(asked + problem)));
  }
  return any;
}

void NamedOperations::add_work(NamedPart part, bool joins) {
  under_way_ += part.bytes();
  if (joins) return works_.back()->add(std::move(part));
  works_.push_back(NamedWork::of(std::move(part), kept_vectors_));
  // Without a progress thread nobody passes counts on while the program does something else.
  if (streams_wait_.load(std::memory_order_relaxed) && settings().progress_thread) {
    works_.back()->give_at_once();
  }
}

// Ends every operation that is not in the log, after a rank has left.
void NamedOperations::end_what_is_left_over() {
  std::vector<Shared> over;
  std::string why;
  {
    const std::lock_guard lock(intake_);
    // Entries of the log are carried out first.
    if (board_.any()) return;
    why = board_.why_left();
    for (auto& [place, operation] : agreed_on_) over.push_back(std::move(operation));
    over.insert(over.end(), backlog_.begin(), backlog_.end());
    over.insert(over.end(), held_.begin(), held_.end());
    if (joining_ != nullptr) over.push_back(std::exchange(joining_, nullptr));
    agreed_on_.clear();
    backlog_.clear();
    held_.clear();
  }
  for (const Shared& operation : over) {
    finish(operation, loss(operation->quoted() + ": " + why));
  }
}

// Lets streams of the program wait for operations whose work has been given to the device. They no
// longer keep others from being taken.
void NamedOperations::publish_given() {
  if (!streams_wait_.load(std::memory_order_relaxed)) return;
  for (const auto& work : works_) {
    if (work->is_given_published() || !work->is_given()) continue;
    work->publish_given();
    under_way_ -= work->bytes();
    for (const NamedPart& part : work->parts()) {
      if (part.operation == nullptr) continue;
      part.operation->given_ = work->given();
      part.operation->is_given_.store(true, std::memory_order_release);
    }
  }
}

// Called if the first work has not ended. What devices have been given ends by itself, so the works
// behind it can go on.
void NamedOperations::advance_behind_given() {
  for (auto work = works_.begin(); (*work)->is_given();) {
    if (++work == works_.end()) return;
    Progress stopped{};  // the first one has to be looked at again anyway
    if ((*work)->advance(stopped)) continue;
    if (waits_for_memory(**work) || !(*work)->start(*comm_)) return;
    (*work)->advance(stopped);
  }
}

void NamedOperations::run_works() {
  stopped_ = {Progress::State::kPolls, {}};
  start_works();
  while (!works_.empty()) {
    NamedWork& first = *works_.front();
    stopped_ = {Progress::State::kPolls, {}};  // for copies, unless a call reports something else
    if (!first.advance(stopped_)) {
      // The next phase, if the one before has ended.
      if (!first.start(*comm_) || !first.advance(stopped_)) return advance_behind_given();
    }
    stopped_ = {Progress::State::kPolls, {}};
    if (!first.finish(*comm_)) return;
    const std::unique_ptr<NamedWork> done = std::move(works_.front());
    if (!done->is_given_published()) under_way_ -= done->bytes();
    works_.pop_front();
    for (const NamedPart& part : done->parts()) {
      if (part.operation == nullptr) continue;
      if (part.chunk == 0) part.operation->times_.started_ns = done->started_ns();
      part.operation->times_.batch = done->parts().size();
      if (!part.is_last_chunk()) continue;
      part.operation->used_transport_ = done->used_transport();
      part.operation->is_copied_to_host_ = done->is_copied_to_host();
      if (result_log_ != nullptr) log_results(*part.operation);
      finish(part.operation, nullptr);
    }
    start_works();
  }
}

// Starts the works in their order. Between hosts, long calls take longer side by side than one
// after the other, since they share the network link.
void NamedOperations::start_works() {
  constexpr std::uint64_t kTogether = std::uint64_t{256} << 10;
  const bool shares_wire = !comm_->node_path().serves_all();
  std::uint64_t bytes = 0;
  for (auto& work : works_) {
    if (shares_wire && bytes > kTogether) break;
    if (waits_for_memory(*work) || !work->start(*comm_)) break;
    bytes += work->bytes();
  }
}

// Whether a work must not start yet, because one before it uses the same memory. This rank's peers
// may start it: they then wait for this rank. There is no circle, as the log has one order.
bool NamedOperations::waits_for_memory(const NamedWork& work) const {
  if (sharing_.load(std::memory_order_relaxed) == 0 || work.has_begun()) return false;
  for (const auto& before : works_) {
    if (before.get() == &work) break;
    if (work.shares_memory_with(*before)) return true;
  }
  return false;
}

// What a waiting thread has to wait for.
Progress NamedOperations::where(bool waits) {
  if (!works_.empty()) return stopped_;
  if (in_flight_ == 0) return {Progress::State::kPolls, {}};  // nothing is waited for
  const std::lock_guard lock(intake_);
  const bool for_room = !backlog_.empty() || !held_.empty() || board_.waits_for_room();
  if (for_room || !board_.is_watching()) return {Progress::State::kPolls, {}};
  // For a short while this thread polls the sockets itself, because being woken takes longer.
  if (waits && relay_ != nullptr) {
    const std::uint64_t now = now_ns();
    if (board_.any()) busy_ns_ = now;
    if (now - busy_ns_ < kLookAtSocketsNs) return {Progress::State::kPolls, {}};
  }
  if (waits && relay_ != nullptr) relay_->rest();
  return {Progress::State::kAwaits, board_.news()};
}

// Logs one hash of all results of the operation. Results in allocated memory are in `outputs`, in
// the order of their arrays.
void NamedOperations::log_results(NamedOperation& operation) const {
  if (operation.arrays().empty()) return;
  const Submission& what = operation.submission();
  const bool has_own_lengths = what.kind == NamedKind::kAllgather ||
                               what.kind == NamedKind::kAlltoall ||
                               what.kind == NamedKind::kReduceScatter;
  std::uint64_t hash = 0;
  auto made = operation.outputs.begin();
  for (std::size_t i = 0; i < operation.arrays().size(); ++i) {
    const NamedArray& array = operation.arrays()[i];
    const bool is_made = has_own_lengths && !array.filled;
    if (is_made && made == operation.outputs.end()) break;
    const std::size_t bytes =
        is_made ? made->bytes : (has_own_lengths ? array.out_bytes : array.bytes());
    const void* const data = is_made ? made->memory.get() : array.out.data;
    if (is_made) ++made;
    const std::uint64_t one = hash_of(is_made ? Memory() : array.out.memory, data, bytes);
    hash = i == 0 ? one : mix(hash, one);
  }
  const std::string of = title_.empty() ? "" : " of " + title_;
  result_log_->write("'" + operation.key() + "'" + of, name_of(what.kind), hash);
}

void NamedOperations::finish(const Shared& operation, std::exception_ptr failure) {
  const std::lock_guard lock(intake_);
  tell_timeline(*operation, failure);
  operation->failed_with_ = std::move(failure);
  release(*operation);  // before a caller sees the end
  if (operation.get() != caller_advances_) {
    finished_.push_back(operation);
    any_finished_ = true;
  }
  --in_flight_;
  operation->finished_.store(true, std::memory_order_release);
}

// Ends finished operations. Those that another thread is advancing stay in the list, since that
// thread may not have seen their end. Returns whether none is left.
bool NamedOperations::advance_finished(const Operation* except) {
  if (!any_finished_.load(std::memory_order_relaxed)) return true;
  std::vector<Shared> finished;
  {
    const std::lock_guard lock(intake_);
    finished.swap(finished_);
    any_finished_ = false;
  }
  std::erase_if(finished, [&](const Shared& one) {
    return one.get() == except || static_cast<bool>(one->advance());
  });
  if (finished.empty()) return true;
  const std::lock_guard lock(intake_);
  finished_.insert(finished_.end(), finished.begin(), finished.end());
  any_finished_ = true;
  return false;
}

}  // namespace gradred
