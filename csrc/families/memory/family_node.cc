#include "families/memory/family_node.h"

#include "families/memory/node_operation.h"
#include "families/memory/node_path.h"
#include "node/memory/layout.h"

namespace gradred {
namespace {

// What the node group does, as a schedule. No schedule describes its broadcasts, which every rank
// reads from the root.
std::optional<Specification> specification(const Question& question, int size) {
  const Kind collective = question.collective;
  if (sums_differ(collective)) {
    return Specification{"linear", {}, "each rank reads what the rank before it has written"};
  }
  if (has_root(collective) && has_blocks(collective)) {
    const bool gathers = info_of(collective).result == Part::kRoots;
    Specification found{"linear", {}, "each rank reads its block of what the root has"};
    if (gathers) found.reason = "the root reads what the others have";
    found.parameters.root = question.root;
    return found;
  }
  if (!has_algorithm(collective, "direct")) return std::nullopt;
  Specification found{"direct", {}, "each rank reduces a part of its own"};
  if (!reduces(collective)) found.reason = "each rank reads what the others have";
  const NodeOptions options;
  const auto ranks = static_cast<std::size_t>(size);
  if (collective == Kind::kAllreduce && options.fits_slots(question.bytes, ranks)) {
    found = {"recursive_multiplying", {}, "each rank reads all vectors and reduces all of it"};
    found.parameters.k = size;
  } else if (collective == Kind::kAllreduce && options.reduces_everything(question.bytes, ranks)) {
    found.reason += ", or all of it where they write past the caches";
  }
  return found;
}

// The schedule that specifies the plan, or a broadcast that every rank reads from the root.
Cost cost_in_memory(const Question& question, const Plan& plan, const Place& place) {
  Cost cost;
  if (plan.specification) {
    const auto& [algorithm, parameters, reason] = *plan.specification;
    cost = place.costs->of(question.collective, algorithm, parameters);
  } else {
    cost.inside = {.rounds = 1, .moved = static_cast<double>(place.size - 1)};
  }
  cost.on_host = 1;
  return cost;
}

class NodeFamily final : public Family {
 public:
  std::string_view name() const override { return "node"; }
  std::string_view about() const override {
    return "memory that all ranks share; long calls may read peers' own: no message is sent";
  }
  std::string_view medium() const override { return "memory"; }
  const char* traced_as() const override { return "shared memory"; }
  UsedTransport used_transport() const override { return UsedTransport::kUnknown; }
  std::vector<std::string> plans(Kind) const override { return {"node"}; }

  std::optional<std::string> why_not(const Question& question, const Place& place) const override {
    if (question.own != nullptr) return "a schedule of the caller's own goes by messages";
    if (!place.why_no_memory.empty()) {
      return "it needs memory that all ranks share: " + place.why_no_memory;
    }
    return std::nullopt;
  }

  // No message is faster than memory that both ranks share. The MPI's own call may be, where it was
  // measured.
  std::vector<Plan> offers(const Question& question, const Place& place) const override {
    Plan plan{.source = this, .name = "node", .reason = "all ranks share memory"};
    plan.specification = specification(question, place.size);
    plan.one_order = true;  // the order of the ranks
    const Figures& figures = place.costs->figures();
    plan.for_every_call = !figures.measured();
    plan.seconds = cost_in_memory(question, plan, place)
                       .seconds(question.vector_bytes(place.size), figures.in_memory());
    return {plan};
  }

  ArrayAccess access(const Call& call) const override {
    return direct_or(ArrayAccess::kDevices, call, call.on_host());
  }

  void run(const Parts& parts, const Plan&, const Call& call, WaitHook& hook) const override {
    parts.node_path.run(call, hook);
  }
  std::shared_ptr<StartedOperation> operation(const Parts& parts, const Plan&,
                                              const Call& call) const override {
    return enqueue(parts.owner.keep(parts.node_path), call);
  }
};

}  // namespace

const Family& node_family() {
  static const NodeFamily family;
  return family;
}

}  // namespace gradred
