#include "families/memory/family_copy.h"

#include "base/copy_bytes.h"
#include "engine/notices/comm_liveness.h"
#include "engine/started.h"
#include "families/memory/scaling.h"

namespace gradred {
namespace {

void run_alone(const Call& call) {
  if (reduces(call.kind) && reduced_ranks(call.kind, 0, 1).count() == 0) return;
  const std::size_t bytes = call.count * size_of(call.dtype);
  if (call.kind != Kind::kBcast && !call.in_place() && call.in.data != call.out.data && bytes > 0) {
    copy_bytes(call.out.data, call.in.data, bytes);
  }
  scale_input(call, call.out.data, call.count);
  if (call.op != Op::kAvg)
    settle_result(call, call.out.data, 0, 1);  // such an average is the input
}

class Copying final : public StartedOperation {
 public:
  Copying(std::shared_ptr<const CommLiveness> liveness, const Call& call)
      : liveness_(std::move(liveness)), call_(call) {}
  std::string waiter() const override { return liveness_->own_name(); }
  std::string waits_for() const override { return "nobody: it is alone"; }

 protected:
  bool step() override {
    if (call_.before() != nullptr && !call_.before()->ready()) return false;
    run_alone(call_);
    return true;
  }
  void withdraw() noexcept override {}

 private:
  const std::shared_ptr<const CommLiveness> liveness_;
  const Call call_;
};

class CopyFamily final : public Family {
 public:
  std::string_view name() const override { return "copy"; }
  std::string_view about() const override { return "one rank: the input is the result"; }
  std::string_view medium() const override { return "none"; }
  const char* traced_as() const override { return "a copy"; }
  UsedTransport used_transport() const override { return UsedTransport::kNowhere; }
  std::vector<std::string> plans(Kind) const override { return {}; }  // no call can name it

  std::optional<std::string> why_not(const Question&, const Place& place) const override {
    if (place.size == 1) return std::nullopt;
    return "there are " + std::to_string(place.size) + " ranks";
  }
  std::vector<Plan> offers(const Question& question, const Place& place) const override {
    Plan plan{.source = this, .name = "copy", .reason = "one rank"};
    plan.one_order = plan.for_every_call = true;
    Cost cost;
    cost.copied = 1;
    plan.seconds = cost.seconds(question.bytes, place.costs->figures().in_memory());
    return {plan};
  }

  ArrayAccess access(const Call& call) const override {
    return direct_or(ArrayAccess::kCopied, call, call.on_host());
  }
  void run(const Parts&, const Plan&, const Call& call, WaitHook&) const override {
    run_alone(call);
  }
  std::shared_ptr<StartedOperation> operation(const Parts& parts, const Plan&,
                                              const Call& call) const override {
    return std::make_shared<Copying>(parts.owner.keep(parts.liveness), call);
  }
};

}  // namespace

const Family& copy_family() {
  static const CopyFamily family;
  return family;
}

}  // namespace gradred
