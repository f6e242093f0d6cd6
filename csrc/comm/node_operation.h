// A collective call, or part of one, that the ranks of a host carry out in shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/started.h"
#include "node/execution.h"

namespace gradred {

class Communicator;

// Operations of a communicator run in the order in which they were started: each announces itself
// once all before it are finished, at the latest when somebody advances it or one behind it.
class NodeOperation final : public StartedOperation {
 public:
  // The ranks carry out the call.
  NodeOperation(std::shared_ptr<Communicator> comm, const Call& call);
  // Nothing moves: they agree on this, and the operation over messages that follows has a number.
  NodeOperation(std::shared_ptr<Communicator> comm, const Signature& agreement);
  // This rank's arguments were refused.
  NodeOperation(std::shared_ptr<Communicator> comm, std::string_view refusal);

  std::uint64_t number() const { return number_; }  // after an agreement

  std::string waiter() const override;
  std::string waits_for() const override;
  bool is_first_to_wait() const override;
  bool needs_no_mpi() const override { return true; }
  std::size_t bytes() const override { return bytes_; }
  bool spins() const override;

 protected:
  bool step() override;
  void give_up(const std::exception_ptr& reason) noexcept override;
  void withdraw() noexcept override;
  void on_end(bool well) noexcept override;

 private:
  enum class Purpose : std::uint8_t { kCall, kAgreement, kRefusal };

  NodeOperation(std::shared_ptr<Communicator> comm, Purpose purpose);
  bool finish_those_before();
  bool begin();
  void take_result();
  void leave() noexcept;

  const std::shared_ptr<Communicator> comm_;
  const Purpose purpose_;
  Call call_;
  std::vector<std::byte> scaled_;  // the input times a factor
  std::size_t bytes_ = 0;
  NodeExecution execution_;
  bool begun_ = false;
  std::uint64_t number_ = 0;
};

}  // namespace gradred
