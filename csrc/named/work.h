// NamedWork: the calls on the communicator that carry out one log entry or a batch of entries.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/pieces.h"
#include "named/arrays_on_host.h"
#include "named/kept_vectors.h"
#include "named/named_operation.h"

namespace gradred {

// One operation of a NamedWork, or a chunk of it.
struct NamedPart {
  // nullptr if this rank has joined: it then contributes zeros.
  std::shared_ptr<NamedOperation> operation;
  std::shared_ptr<const Submission> others_have;  // set in that case
  std::uint32_t chunk = 0;

  const Submission& submission() const {
    return operation != nullptr ? operation->submission() : *others_have;
  }
  bool is_last_chunk() const { return chunk + 1 == submission().chunks(); }
  std::uint64_t bytes() const { return submission().bytes_of(chunk); }
};

// How the scale factors of a submission are applied. An average without factors is computed by the
// reduction itself.
struct Factors {
  Op op;
  double before, after;
};
Factors factors_of(const Submission& what, int size);

class NamedWork {
 public:
  // The caller keeps `kept` alive as long as the result.
  static std::unique_ptr<NamedWork> of(NamedPart first, KeptVectors& kept);
  virtual ~NamedWork() = default;

  virtual void add(NamedPart part) { parts_.push_back(std::move(part)); }
  const std::vector<NamedPart>& parts() const { return parts_; }  // at least one
  std::uint64_t bytes() const;
  void note_start() { notes_start_ = true; }
  // Gives devices all work of a call at once where that is possible. Before the first start().
  void give_at_once() { gives_ = true; }
  // Whether devices have been given all work of all calls. given(): the events behind it.
  bool is_given() const;
  const std::vector<std::shared_ptr<EndEvent>>& given() const { return given_; }
  void publish_given() { given_published_ = true; }
  bool is_given_published() const { return given_published_; }
  std::uint64_t started_ns() const { return started_ns_; }  // 0 unless note_start() was called

  bool has_begun() const { return phase_ != 0; }
  // Whether an operation of this rank in one of the two uses memory that one in the other writes.
  bool shares_memory_with(const NamedWork& other) const;

  // Starts the calls that can be started. Returns whether all have been, so that the next work may
  // start. All ranks start the calls of a communicator in the same order.
  bool start(Communicator& comm);
  // Returns whether all calls have ended; throws the error of one that failed. If not, `stopped`
  // says what has to happen first.
  bool advance(Progress& stopped);
  // The caller calls this once all calls have succeeded, and again until it returns true. The
  // results are in place then.
  bool finish(Communicator& comm);
  // After finish(): how the data of the last call moved (kUnknown: there were no data), and whether
  // they passed through copies in host memory.
  UsedTransport used_transport() const {
    if (calls_.empty() || at_once_ != UsedTransport::kUnknown) return at_once_;
    return calls_.back()->used_transport();
  }
  bool is_copied_to_host() const {
    return on_host_ != nullptr || (!calls_.empty() && calls_.back()->is_copied_to_host());
  }
  // Returns whether nothing uses the callers' arrays or this object's memory any more. If something
  // does, the caller must not free this object.
  bool abandon(const std::exception_ptr& reason) noexcept;

 protected:
  explicit NamedWork(NamedPart first) { parts_.push_back(std::move(first)); }
  // Starts the calls of one phase, after those of the phase before have ended. Returns whether it
  // was the last phase.
  virtual bool start_phase(Communicator& comm, int phase) = 0;
  virtual void conclude(Communicator& /*comm*/) {}  // called after all calls have succeeded
  // Copies between device memory and host memory. The first two never block.
  virtual bool inputs_are_there();   // called before each phase but the first
  virtual bool results_are_there();  // called after conclude()
  // Whether no copy is in progress; waits a moment for those that are.
  virtual bool settle() noexcept;
  // Copies the operation's arrays, which lie in a device's memory, to host memory, and uses the
  // copies from then on.
  void move_to_host() {
    on_host_ = std::make_unique<ArraysOnHost>(operation());
    on_host_->take_over();
  }
  void start_call(Communicator& comm, const Call& call);
  // The order of calls on device arrays and of the copies before them. nullptr: the arrays are in
  // host memory.
  using Order = std::shared_ptr<const CallOrder>;
  // `may_give`: one call alone has this order, so that its work may be given to the device at once.
  Order order_after(const After& after, bool may_give = true);
  // broadcast() and allgather() move bytes, whatever the array's type.
  void broadcast(Communicator& comm, OutBuffer data, std::size_t bytes, int root, Order order = {});
  void allgather(Communicator& comm, InBuffer mine, OutBuffer all, std::size_t bytes,
                 Order order = {});
  NamedOperation& operation() const { return *parts_.front().operation; }

 private:
  bool prepares_later() const;

  std::vector<NamedPart> parts_;
  std::vector<std::shared_ptr<StartedOperation>> calls_;  // without those that ended at once
  UsedTransport at_once_ = UsedTransport::kUnknown;       // of the last call, if it ended at once
  std::vector<Order> orders_;
  // The ends of the calls on device arrays. Each of these calls has an order of its own.
  std::vector<std::shared_ptr<EndEvent>> given_;
  bool gives_ = false, given_published_ = false;
  int phase_ = 0;
  bool started_ = false;
  bool concluded_ = false;
  bool notes_start_ = false;
  std::uint64_t started_ns_ = 0;
  std::unique_ptr<ArraysOnHost> on_host_;
};

// allreduce_work.cc
std::unique_ptr<NamedWork> make_allreduce(NamedPart first, KeptVectors& kept);

}  // namespace gradred
