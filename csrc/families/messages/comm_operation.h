// One call in flight over messages, with its number. If one rank refuses or loses it, it ends on
// all ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/failure.h"
#include "base/signature_mismatch.h"
#include "calls/member.h"
#include "calls/parts.h"
#include "engine/notices/comm_liveness.h"
#include "engine/notices/operation_log.h"
#include "engine/started.h"
#include "families/memory/node_operation.h"
#include "families/memory/node_path.h"
#include "families/messages/kept_memory.h"
#include "families/messages/path.h"
#include "families/messages/scheduled.h"
#include "families/messages/settling.h"
#include "liveness/failure_board.h"
#include "liveness/status_page.h"

namespace gradred {

// Waits, without blocking, until its tags are free; then runs. If it is refused, here or by a peer,
// it ends with an error once nothing of it is left.
class CommOperation : public StartedOperation {
 public:
  // `call` comes from planned(), here and below.
  CommOperation(std::shared_ptr<const MessageParts> parts, const Call& call, Plan plan)
      : scheduled_(call, parts->member.rank, parts->member.size),
        parts_(std::move(parts)),
        plan_(std::move(plan)) {}
  // The operation gets its number when the ranks of the host have agreed.
  CommOperation(std::shared_ptr<const MessageParts> parts, const Call& call, Plan plan,
                std::shared_ptr<NodeOperation> agreement)
      : scheduled_(call, parts->member.rank, parts->member.size),
        parts_(std::move(parts)),
        plan_(std::move(plan)),
        agreement_(std::move(agreement)),
        agreed_(false) {}

  // Sets its number, before the first advance(). `self`: this operation.
  virtual void begin(std::uint64_t number, const std::shared_ptr<CommOperation>& /*self*/) {
    number_ = number;
    post_begun();
  }

  // The ranks agree on the call by another operation over messages, before this one. Only before
  // the first advance().
  void begin_after(std::shared_ptr<StartedOperation> agreement) {
    first_ = std::move(agreement);
    first_ended_ = false;
  }

  // ---- reused by later calls (kept_operations.h) ------------------------------------------------

  // For a call whose caller waits for it, so that no other thread knows the operation. After the
  // call it stays cached, with what it needs to carry out such a call again.
  void be_kept() {
    kept_ = true;
    stay_private();
  }
  bool is_free() const { return ended() && !failed(); }
  std::size_t bytes_held() const { return scheduled_.bytes_held(); }
  // Whether what it has cached is what this call needs.
  bool serves(const Call& call) const {
    return call_.path == call.path && call_.count == call.count && call_.kind == call.kind &&
           call_.dtype == call.dtype && call_.op == call.op &&
           call_.out.memory == call.out.memory && call_.schedule == call.schedule &&
           reads_callers_input(call_) == reads_callers_input(call);
  }
  // Prepares a cached operation for this call: begin() may then be called again.
  virtual void bind(const Call& call) {
    scheduled_.bind(call);
    started_ = notified_ = false;
    renew();
  }

  std::string waiter() const override { return parts_->liveness.own_name(); }
  std::string waits_for() const override {
    if (!first_ended_) return first_->waits_for();
    return !agreed_ ? agreement_->waits_for()
                    : parts_->liveness.waits_for(number_, call_.signature());
  }
  WaitRecord wait_record() const override {
    if (!first_ended_) return first_->wait_record();
    return !agreed_ ? agreement_->wait_record()
                    : parts_->liveness.wait_record(number_, call_.signature());
  }
  bool is_first_to_wait() const override {
    if (!first_ended_) return first_->is_first_to_wait();
    return !agreed_ ? agreement_->is_first_to_wait() : parts_->liveness.is_first_to_wait(number_);
  }
  bool spins() const override { return parts_->node_path.spins(); }
  bool holds_memory() const override { return scheduled_.holds_memory(); }
  void observe(std::shared_ptr<Observation> observation) override {
    if (agreement_) agreement_->observe(observation);  // the ranks meet in the agreement
    StartedOperation::observe(std::move(observation));
  }

 protected:
  bool step() override {
    if (!agreed_ && !agree()) return false;
    if (!refusal_) {
      try {
        if (!first_ended_ && !await_first()) return false;
        if (carry_out()) return true;
        if (is_due()) look();
      } catch (const SignatureMismatch& error) {
        refuse(error.text_for(parts_->liveness.names()));
      } catch (const UsageError& error) {
        refuse(error.what());
      } catch (const PeerLost&) {
        throw;
      } catch (const TimeoutError&) {
        throw;
      } catch (const TransportError& error) {  // often the first sign that a peer has ended
        parts_->liveness.throw_if_peer_ended(error.what());
        throw;
      }
    }
    return refusal_ ? leave() : false;
  }

  void on_end(bool well) noexcept override {
    if (!agreed_) return StartedOperation::on_end(well);  // the ranks did not agree
    const bool keeps =
        well && kept_ && bytes_held() <= kMostBytesKept && memory_.keep(bytes_held());
    if (!keeps) memory_.give_up();
    auto bound_plan = keeps ? nullptr : scheduled_.release_bound_plan();
    if (well || !refusal_) parts_->operation_log.end(number_);
    if (!well && !is_usage_error(failure())) parts_->liveness.fail(failure());
    if (well && bound_plan) parts_->path->give_back(std::move(bound_plan));
    StartedOperation::on_end(well);
  }

  void give_up(const std::exception_ptr& reason) noexcept override {
    if (!first_ended_) first_->abandon(reason);
    if (!agreed_) agreement_->abandon(reason);
    StartedOperation::give_up(reason);
  }

  void withdraw() noexcept override { scheduled_.abandon(); }

  // Goes on as far as possible; true when it is complete. Throws UsageError if the ranks do not
  // agree.
  virtual bool carry_out() { return (started_ || start()) && scheduled_.step(); }
  // After a refusal: whether nothing of the operation is left on this rank. Does not block.
  virtual bool clear_away() { return scheduled_.drain(); }
  virtual std::unique_ptr<BoundPlan> take_bound_plan() { return parts_->path->take(call_, plan_); }
  const std::string& refusal() const { return *refusal_; }

  bool kept() const { return kept_; }
  bool started() const { return started_; }
  // Returns false while an earlier operation holds the tags.
  bool start() {
    parts_->liveness.throw_if_failed();
    parts_->liveness.throw_if_failed_before(call_.kind, number_);
    OperationLog& log = parts_->operation_log;
    // A rank that never waits receives notices here.
    if (number_ % kOperationsPerLook == 0) log.progress();
    parts_->liveness.receive_after_pause();
    parts_->liveness.throw_if_failed();
    if (const auto reason = log.refusal(number_)) throw UsageError(*reason);
    if (!log.may_start(number_)) return false;
    since_ns_ = now_ns();
    if (!scheduled_.has_bound_plan()) scheduled_.use(take_bound_plan());
    scheduled_.use_tags(parts_->path->transport().tags().tag(number_));
    started_ = true;
    return true;
  }

  ScheduledCall scheduled_;
  const Call& call_ = scheduled_.call();
  const std::shared_ptr<const MessageParts> parts_;
  const Plan plan_;

 private:
  // Between two looks for notices of peers about an operation that waits.
  static constexpr unsigned kStepsPerLook = 64;
  static constexpr std::uint64_t kAsleepPerLookNs = 10'000'000;
  static constexpr std::uint64_t kOperationsPerLook = 16;
  // Ranks that wait longer than this compare what they wait for: they may wait for each other.
  static constexpr std::uint64_t kNotifiesAfterNs = 50'000'000;

  bool is_due() {
    if (++looks_ % kStepsPerLook == 0) return true;
    if (!stopped_to_sleep()) return false;
    const std::uint64_t now = now_ns();  // a thread that sleeps makes few steps
    if (looked_ns_ == 0) looked_ns_ = now;
    if (now - looked_ns_ < kAsleepPerLookNs) return false;
    looked_ns_ = now;
    return true;
  }

  bool agree() {
    if (const Progress progress = agreement_->advance(caller()); !progress) {
      stop_at(progress);
      return false;
    }
    agreement_->rethrow();
    number_ = agreement_->number();
    agreed_ = true;
    post_begun();
    return true;
  }

  bool await_first() {
    if (const Progress progress = first_->advance(caller()); !progress) {
      stop_at(progress);
      return false;
    }
    first_ended_ = true;
    first_->rethrow();
    return true;
  }

  void post_begun() const {
    gradred::post_begun(number_ | LastBegun::kOverMessages, scheduled_.signature());
  }

  void look() {
    OperationLog& log = parts_->operation_log;
    log.progress();
    log.answer(number_, scheduled_.signature());
    parts_->liveness.throw_if_failed();
    throw_if_lost();
    if (const auto reason = log.refusal(number_)) throw UsageError(*reason);
    if (const auto mismatch = log.disagreement(number_, scheduled_.signature())) throw *mismatch;
    if (notified_ || !started_ || now_ns() - since_ns_ < kNotifiesAfterNs) return;
    notified_ = true;
    if (any_rank_failed() && parts_->liveness.find_lost()) return;  // see throw_if_failed_before()
    log.tell_waiting(number_, scheduled_.signature());
  }

  void throw_if_lost() { parts_->liveness.throw_if_lost({}, number_); }

  void refuse(const std::string& reason) {
    refusal_ = reason;
    scheduled_.drain();  // receives nothing more, so that peers may be notified
    leave_operation(parts_->owner.keep(*parts_), number_, reason);
  }

  // Waits until all ranks have come to this operation and know of its end, so that nothing of it is
  // left.
  bool leave() {
    throw_if_left_by_all();
    if (++looks_ % kStepsPerLook != 0) return false;
    try {
      parts_->liveness.throw_if_failed();
      throw_if_lost();
    } catch (const PeerLost&) {
      throw_if_left_by_all();  // the peer may have ended after it left with the same error
      throw;
    }
    return false;
  }

  void throw_if_left_by_all() {
    parts_->operation_log.progress();
    if (clear_away() && parts_->operation_log.settled(number_)) throw UsageError(*refusal_);
  }

  // The most bytes that stay cached. What a longer call needs is made in less time than the call
  // takes.
  static constexpr std::size_t kMostBytesKept = std::size_t{16} << 20;

  std::atomic<std::uint64_t> number_{0};
  std::shared_ptr<NodeOperation> agreement_;
  std::atomic<bool> agreed_{true};
  std::shared_ptr<StartedOperation> first_;
  std::atomic<bool> first_ended_{true};
  bool kept_ = false;
  KeptMemory memory_;     // cached between two calls
  bool started_ = false;  // it has its tags
  std::optional<std::string> refusal_;
  unsigned looks_ = 0;
  std::uint64_t since_ns_ = 0, looked_ns_ = 0;
  bool notified_ = false;
};

}  // namespace gradred
