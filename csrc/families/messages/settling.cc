#include "families/messages/settling.h"

#include <string>
#include <utility>

#include "engine/driving.h"
#include "engine/notices/comm_liveness.h"
#include "engine/notices/operation_log.h"

namespace gradred {
namespace {

// Receives the remaining messages of an operation that a rank has refused, while the program goes
// on.
class Settling final : public Operation {
  static constexpr unsigned kStepsPerLook = 64;

 public:
  Settling(std::shared_ptr<const MessageParts> parts, std::uint64_t number)
      : parts_(std::move(parts)), number_(number) {}

  std::string waiter() const override { return parts_->liveness.own_name(); }
  std::string waits_for() const override { return messages(); }
  bool must_end() const override { return true; }

 protected:
  void on_end(bool well) noexcept override {
    if (!well) parts_->liveness.fail(failure());
  }
  bool step() override {
    if (parts_->operation_log.progress()) return true;
    if (++looks_ % kStepsPerLook != 0) return false;
    parts_->liveness.throw_if_failed();
    parts_->liveness.throw_if_lost(messages(), number_);
    return false;
  }
  void withdraw() noexcept override {}

 private:
  std::string messages() const {
    return "the messages of operation " + std::to_string(number_) + ", which a rank has refused";
  }

  const std::shared_ptr<const MessageParts> parts_;
  const std::uint64_t number_;
  unsigned looks_ = 0;
};

}  // namespace

std::shared_ptr<Operation> leave_operation(std::shared_ptr<const MessageParts> parts,
                                           std::uint64_t number, std::string_view reason) {
  parts->operation_log.leave(number, reason);
  auto settling = std::make_shared<Settling>(std::move(parts), number);
  if (!settling->advance()) let_drive(settling);
  return settling;
}

}  // namespace gradred
