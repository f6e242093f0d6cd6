#include "families/messages/family_hierarchical.h"

#include <algorithm>

#include "calls/plan_choice.h"
#include "families/messages/comm_operation.h"
#include "families/messages/family_schedule.h"
#include "families/messages/message_operations.h"

namespace gradred {
namespace {

// From this length on a piece is worth its additional rounds: while one piece is in flight, the
// host works on another.
constexpr std::size_t kSmallestPiece = std::size_t{1} << 20;
constexpr std::size_t kMostPieces = 8;
// Encoding takes longer than combining, and a piece is encoded as a whole.
constexpr std::size_t kMostCodedPieces = 32;

std::size_t largest_host(const Topology& topology) {
  std::size_t largest = 0;
  for (const auto& group : Lanes::of(topology, false).groups) {
    largest = std::max(largest, group.size());
  }
  return largest;
}

// The part between hosts costs what its schedule costs, and the ranks of a host share the network
// port. In addition each rank reduces and copies its parts of all inputs, and then copies all
// parts. A leader does so with the whole vector.
Cost through_memory(Kind collective, const Parameters& parameters, const Place& place) {
  Cost cost = place.costs->of_crossing(collective, parameters);
  const auto ranks = static_cast<double>(largest_host(place.topology));
  const bool reduces = gradred::reduces(collective);
  cost.on_host = 2;
  if (parameters.leaders != 0) {
    cost.reduced += reduces ? ranks - 1 : 0;
    cost.copied += 3;
  } else {
    cost.messages += (ranks - 1) * cost.across.rounds;
    cost.reduced += reduces ? (ranks - 1) / ranks : 0;
    cost.copied += (2 * ranks - 1) / ranks;
  }
  return cost;
}

// Whether one operation in the host's memory can always take the vector. If only leaders exchange
// data between hosts, blocks go through memory in one operation that the leader leads, and that
// operation has a limit: what every group has from the beginning.
bool can_be_led(const Question& question, const Place& place) {
  const std::size_t bytes = question.vector_bytes(place.size);
  const auto ranks = std::max<std::size_t>(2, largest_host(place.topology));
  return NodeOptions().lines().fits_slots(bytes, ranks);
}

// On each host the order is that of the ranks. Between hosts an allreduce depends on the schedule;
// blocks always have one order.
bool crosses_in_one_order(Kind collective, const Parameters& parameters) {
  if (collective != Kind::kAllreduce) return true;
  return parameters.wire == Wire::kNone && find_algorithm(collective, parameters.across).one_order;
}

std::size_t pieces_of(const Question& question, const Cost& cost, const CostModel& model,
                      std::size_t most_pieces) {
  if (has_blocks(question.collective)) return 1;
  if (question.slices > 0) return std::min(question.slices, question.most_slices);
  const std::size_t most = std::clamp<std::size_t>(question.bytes / kSmallestPiece, 1,
                                                   std::min(most_pieces, question.most_slices));
  return cost.best_slices(question.bytes, model, most);
}

// The forms of a compressed wire that the call may have.
std::vector<Wire> forms_of(const Question& question) {
  if (question.wire == Wire::kNone) return {};
  if (question.wire == Wire::kAuto) return {Wire::kBFloat16, Wire::kInt8};
  return {question.wire};
}

// A form has limits, so means and scaled sums are scaled before they are encoded. Each rank scales
// its input.
Call scaled_before(const Call& call, const Plan& plan, int size) {
  Call made = call;
  if (plan.parameters.wire == Wire::kNone || call.op != Op::kAvg) return made;
  made.op = Op::kPremul;
  made.factor = 1.0 / size;
  return made;
}

class HierarchicalFamily final : public Family {
 public:
  std::string_view name() const override { return kHierarchical; }
  std::string_view about() const override {
    return "shared memory inside each host, messages between hosts";
  }
  std::string_view medium() const override { return "messages"; }
  const char* traced_as() const override { return nullptr; }
  bool sends(const Place&) const override { return true; }
  std::vector<std::string> plans(Kind collective) const override {
    if (!has_algorithm(collective, kHierarchical)) return {};
    return {std::string(kHierarchical)};
  }

  std::optional<std::string> why_not(const Question& question, const Place& place) const override {
    if (question.own != nullptr) return "a schedule of the caller's own is a plan of its own";
    if (!has_algorithm(question.collective, kHierarchical)) return "there is no such schedule";
    if (place.size == 1) return "one rank sends no messages";
    if (!place.why_no_messages.empty()) return place.why_no_messages;
    return std::nullopt;
  }

  // If no plan is named, it is offered only if there are two levels.
  std::vector<Plan> offers(const Question& question, const Place& place) const override {
    const bool levels = place.topology.hosts > 1 && place.topology.hosts < place.size;
    std::vector<Plan> found;
    if (!levels && question.plan.empty() && question.wire == Wire::kNone) return {};
    for (const int leaders : {1, 0}) {
      // Without shared memory it has more rounds than other plans.
      if (leaders == 1 && !place.hosts_share_memory()) continue;
      if (leaders == 1 && !levels) continue;
      for (const Wire form : forms_of(question)) {
        found.push_back(offer(leaders, "", question, place, form));
      }
      if (!levels && question.plan.empty()) continue;
      if (question.collective != Kind::kAllreduce) {
        const bool led = !has_blocks(question.collective) || can_be_led(question, place);
        if (leaders == 0 || led) found.push_back(offer(leaders, "", question, place, Wire::kNone));
        continue;
      }
      for (const char* across : {"recursive_doubling", "rabenseifner", "circulant"}) {
        found.push_back(offer(leaders, across, question, place, Wire::kNone));
      }
    }
    return found;
  }

  ArrayAccess access(const Call& call) const override {
    return direct_or(ArrayAccess::kPieces, call, call.on_host());
  }
  void run(const Parts& parts, const Plan& plan, const Call& call, WaitHook& hook) const override {
    const Call made = scaled_before(call, plan, parts.place.size);
    if (!parts.place.hosts_share_memory()) return parts.messages.run(made, plan, hook);
    parts.messages.run_hierarchical(made, plan, hook);
  }
  std::shared_ptr<StartedOperation> operation(const Parts& parts, const Plan& plan,
                                              const Call& call) const override {
    const Call made = scaled_before(call, plan, parts.place.size);
    if (!parts.place.hosts_share_memory()) return parts.messages.start(made, plan);
    return parts.messages.start_hierarchical(made, plan);
  }

 private:
  Plan offer(int leaders, const char* across, const Question& question, const Place& place,
             Wire form) const {
    Parameters parameters;
    parameters.local = place.topology.local;
    if (parameters.local == 0) parameters.groups = place.topology.host_of;
    parameters.leaders = leaders;
    parameters.root = question.root;
    parameters.across = across;
    parameters.wire = form;
    if (question.collective != Kind::kAllreduce) parameters.inside.clear();
    const Cost cost = place.hosts_share_memory()
                          ? through_memory(question.collective, parameters, place)
                          : place.costs->of(question.collective, kHierarchical, parameters);
    const Figures& figures = place.costs->figures();
    const std::size_t bytes = question.vector_bytes(place.size);
    Plan plan{.source = this, .name = std::string(kHierarchical), .parameters = parameters};
    const std::string crossing(form == Wire::kNone ? across : name_of(form));
    plan.label = plan.name + " " + crossing + (leaders == 1 ? " by leaders" : " by all");
    const bool by_memory = place.hosts_share_memory() && place.topology.hosts < place.size;
    const std::size_t most = form != Wire::kNone ? kMostCodedPieces
                             : by_memory         ? kMostPieces
                                                 : kMostSlices;
    plan.slices = pieces_of(question, cost, figures.model, most);
    plan.seconds =
        cost.seconds(bytes, figures.model, plan.slices) * figures.correction(bytes, plan.label);
    plan.specification = {plan.name, parameters, ""};
    plan.one_order = place.sums_on_hosts() && crosses_in_one_order(question.collective, parameters);
    plan.reason =
        question.plan.empty() ? "costs least (figures " + figures.source() + ")" : "as asked";
    if (form != Wire::kNone) {
      plan.reason = std::string(name_of(form)) + " between hosts, " + plan.reason;
    }
    return plan;
  }
};

}  // namespace

const Family& hierarchical_family() {
  static const HierarchicalFamily family;
  return family;
}

}  // namespace gradred
