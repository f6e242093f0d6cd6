// What an entry of the log, or a batch of entries, makes a rank do: calls on its communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/pieces.h"
#include "coordinator/arrays_on_host.h"
#include "coordinator/kept_vectors.h"
#include "coordinator/named.h"

namespace gradred {

// One operation of a work, or a chunk of it.
struct NamedPart {
  std::shared_ptr<NamedOperation> operation;      // null: this rank has joined, and has zeros
  std::shared_ptr<const Submission> others_have;  // then
  std::uint32_t chunk = 0;

  const Submission& submission() const {
    return operation != nullptr ? operation->submission() : *others_have;
  }
  bool is_last_chunk() const { return chunk + 1 == submission().chunks(); }
  std::uint64_t bytes() const { return submission().bytes_of(chunk); }
};

// How the factors of a submission are applied: an average in the reduction itself.
struct Factors {
  Op op;
  double before, after;
};
Factors factors_of(const Submission& what, int size);

class NamedWork {
 public:
  // `kept` outlives it.
  static std::unique_ptr<NamedWork> of(NamedPart first, KeptVectors& kept);
  virtual ~NamedWork() = default;

  virtual void add(NamedPart part) { parts_.push_back(std::move(part)); }
  const std::vector<NamedPart>& parts() const { return parts_; }  // at least one
  std::uint64_t bytes() const;
  void note_start() { notes_start_ = true; }
  std::uint64_t started_ns() const { return started_ns_; }  // if that was asked for; else 0

  // Starts what can be started; whether nothing more will be, so that the next work may begin. All
  // ranks start the calls of a communicator in the same order.
  bool start(Communicator& comm);
  // Whether all calls have ended; throws what ended one of them. Else: what has to come first.
  bool advance(Progress& stopped);
  // All have ended well: whether the results are in place. If not, it has to be called again.
  bool finish(Communicator& comm);
  // Whether nobody uses the callers' arrays, or memory of this, any more. Else it has to stay.
  bool abandon(const std::exception_ptr& reason) noexcept;

 protected:
  explicit NamedWork(NamedPart first) { parts_.push_back(std::move(first)); }
  // Phase by phase, each after the calls of the one before have ended; whether it was the last one.
  virtual bool start_phase(Communicator& comm, int phase) = 0;
  virtual void conclude(Communicator& /*comm*/) {}  // all calls have ended well
  // Copies between devices and the host's memory. The first two never block.
  virtual bool inputs_are_there();   // before a phase other than the first
  virtual bool results_are_there();  // after conclude()
  virtual bool settle() noexcept;    // whether none is under way; waits a moment for them
  // Has the operation's arrays, which lie in a device's memory, copied to the host's.
  void move_to_host() {
    on_host_ = std::make_unique<ArraysOnHost>(operation());
    on_host_->take_over();
  }
  void start_call(Communicator& comm, const Call& call) { calls_.push_back(comm.start(call)); }
  // For calls on such arrays, and copies before them. Null: they are the host's.
  using Order = std::shared_ptr<const CallOrder>;
  Order order_after(const After& after);
  // Bytes as they are.
  void broadcast(Communicator& comm, OutBuffer data, std::size_t bytes, int root, Order order = {});
  void allgather(Communicator& comm, InBuffer mine, OutBuffer all, std::size_t bytes,
                 Order order = {});
  NamedOperation& operation() const { return *parts_.front().operation; }

 private:
  std::vector<NamedPart> parts_;
  std::vector<std::shared_ptr<StartedOperation>> calls_;
  std::vector<Order> orders_;
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
