#include "families/messages/hierarchical.h"

#include <utility>

#include "base/copy_bytes.h"
#include "base/errors.h"
#include "families/memory/scaling.h"
#include "schedule/algorithms.h"

namespace gradred {

HierarchicalOperation::HierarchicalOperation(std::shared_ptr<const MessageParts> parts,
                                             const Call& call, const Plan& plan)
    : HostedOperation(std::move(parts), call, plan),
      roots_place_(is(Kind::kBcast)
                       ? place_on_host(parts_->place.topology, parts_->member.rank, call.root)
                       : -1),
      led_(!alone() && plan.parameters.leaders != 0 && plan.slices == 1 &&
           group()->may_lead(count() * size_of(call.dtype))) {
  if (has_blocks(call.kind) && plan.parameters.leaders != 0 && !led_ && !alone()) {
    throw Error("internal error: nobody leads blocks that only leaders exchange");
  }
  const auto pieces = static_cast<unsigned>(plan.slices);
  if (led_ || is(Kind::kReduceScatterBlock)) {
    operations_on_host_ = 1;
  } else if (is(Kind::kBcast)) {
    operations_on_host_ = on_roots_host() ? pieces : pieces + 1;
  } else {
    operations_on_host_ = 2 * pieces;
  }
  if (call.before() == nullptr) scale_by_factor(call);
}

void HierarchicalOperation::bind(const Call& call) {
  if (call.before() == nullptr)
    scale_by_factor(call);  // may lack the memory; nothing has changed then
  combined_ = shared_ = 0;
  HostedOperation::bind(call);
}

void HierarchicalOperation::scale_by_factor(const Call& call) {
  if (reduces(call.kind) && call.op == Op::kPremul)
    scaled_input(call, parts_->member.size, scaled_);
}

std::size_t HierarchicalOperation::count() const {
  return call_.count * vector_counts(call_.kind, parts_->member.size);
}

std::byte* HierarchicalOperation::vector() const {
  if (is(Kind::kReduceScatterBlock)) return scheduled_.bound_plan().work.data();
  return static_cast<std::byte*>(call_.out.data);
}

std::unique_ptr<BoundPlan> HierarchicalOperation::take_bound_plan() {
  BoundPlanKey key;
  key.collective = call_.kind;
  key.name = "across groups " + std::to_string(call_.path);  // the path is the plan's hash
  key.count = count();
  key.slices = plan_.slices;
  key.dtype = call_.dtype;
  key.op = call_.op;
  // If nothing is combined on the host, the first round reads the input itself.
  key.in_place = !(alone() && is(Kind::kAllreduce) && reads_callers_input(call_));
  auto bound_plan = parts_->path->take(key, [&] {
    Schedule schedule = make_across_groups(key.collective, parts_->member.rank, parts_->member.size,
                                           plan_.parameters);
    schedule.name = plan_.name;
    return std::make_shared<const Schedule>(std::move(schedule));
  });
  if (bound_plan->parts.begins.empty()) {
    bound_plan->parts = host_parts(call_, plan_, parts_->member.rank, parts_->member.size, pieces(),
                                   bound_plan->schedule->chunks, led_);
  }
  return bound_plan;
}

// ---- input and result ---------------------------------------------------------------------------

void HierarchicalOperation::put_input() {
  BoundPlan& bound_plan = scheduled_.bound_plan();
  const std::size_t bytes = count() * size_of(call_.dtype);
  const std::size_t own = call_.count * size_of(call_.dtype);
  const auto rank = static_cast<std::size_t>(parts_->member.rank);
  const bool blocks = is(Kind::kReduceScatterBlock);
  if (blocks && bound_plan.work.bytes() < bytes) bound_plan.work = Allocation(Memory(), bytes);
  const void* const from = input() == kInPlace ? call_.out.data : input();
  std::byte* to = nullptr;
  std::size_t length = 0;
  if (is(Kind::kAllgather)) {
    if (input() != kInPlace) to = vector() + rank * own, length = own;
  } else if (!is(Kind::kBcast) && alone() && bound_plan.key.in_place) {
    to = vector(), length = bytes;
  }
  if (length > 0 && from != to) copy_bytes(to, from, length);
}

void HierarchicalOperation::take_result() {
  const std::size_t bytes = call_.count * size_of(call_.dtype);
  if (is(Kind::kReduceScatterBlock) && bytes > 0) {
    copy_bytes(call_.out.data, vector() + static_cast<std::size_t>(parts_->member.rank) * bytes,
               bytes);
  }
  settle_result(call_, call_.out.data, parts_->member.rank, parts_->member.size);
}

// ---- the steps of an operation ------------------------------------------------------------------

bool HierarchicalOperation::carry_out() {
  if (call_.before() != nullptr && !call_.before()->ready()) return false;
  if (!started()) {
    if (!start()) return false;
    if (call_.before() != nullptr) scale_by_factor(call_);
    put_input();
  }
  if (led_ ? !carry_out_led() : !carry_out_pieces()) return false;
  take_result();
  return true;
}

bool HierarchicalOperation::carry_out_pieces() {
  while (shared_ < plan_.slices) {
    advance_crossing();
    const bool combines = combined_ < plan_.slices && combined_ <= shared_ + 1;
    if (combines ? !before_crossing(combined_) : !after_crossing(shared_)) return false;
  }
  return true;
}

std::size_t HierarchicalOperation::end_of(std::size_t piece) const {
  return (pieces().begin(piece) + pieces().length(piece)) * size_of(call_.dtype);
}

bool HierarchicalOperation::has_input(std::size_t end) const {
  return call_.flow() == nullptr || call_.flow()->has_input(end);
}

bool HierarchicalOperation::carry_out_led() {
  if (combined_ == 0) {
    if (!has_input(end_of(0)) || !on_host(led_call())) return false;
    ++combined_;
    if (group()->rank() == 0) cross(0);
  }
  advance_crossing();
  if (awaits_messages()) return false;
  pass_on();
  return true;
}

bool HierarchicalOperation::before_crossing(std::size_t piece) {
  if (!has_input(end_of(piece))) return false;
  const auto made = call_before(piece);
  if (made && !on_host(*made)) return false;
  ++combined_;
  cross(piece);
  return true;
}

bool HierarchicalOperation::after_crossing(std::size_t piece) {
  if (scheduled_.bound_plan().slices[piece]->active()) return false;
  const auto made = call_after(piece);
  if (made && !on_host(*made)) return false;
  ++shared_;
  if (call_.flow() != nullptr) call_.flow()->has_result(end_of(piece));
  return true;
}

void HierarchicalOperation::cross(std::size_t piece) {
  const auto* const input = static_cast<const std::byte*>(this->input());
  const bool reads_input = !scheduled_.bound_plan().key.in_place;
  scheduled_.bound_plan().slices[piece]->start(
      vector(piece), reads_input ? input + pieces().begin(piece) * size_of(call_.dtype) : nullptr,
      static_cast<std::uint32_t>(scheduled_.first_tag()) + static_cast<std::uint32_t>(piece),
      scheduled_.signature());
}

void HierarchicalOperation::advance_crossing() {
  for (std::size_t piece = shared_; piece < combined_; ++piece) {
    Execution& crossing = *scheduled_.bound_plan().slices[piece];
    if (crossing.active()) crossing.advance();
  }
}

bool HierarchicalOperation::awaits_messages() const {
  for (std::size_t piece = shared_; piece < combined_; ++piece) {
    if (scheduled_.bound_plan().slices[piece]->active()) return true;
  }
  return false;
}

// ---- in the memory of the host ------------------------------------------------------------------

NodeCall HierarchicalOperation::on_vector(Kind kind, std::size_t piece) {
  const HostParts& parts = scheduled_.bound_plan().parts;
  return {.kind = kind,
          .recv = vector(piece),
          .count = pieces().length(piece),
          .element = size_of(call_.dtype),
          .reduce = find_reduction(call_.op, call_.dtype),
          .signature = scheduled_.signature(),
          .parts = parts.begins[piece].data(),
          .order = parts.order.empty() ? nullptr : parts.order.data(),
          .block = call_.count};
}

NodeCall HierarchicalOperation::led_call() {
  NodeCall made = on_vector(is(Kind::kReduceScatterBlock) ? Kind::kAllreduce : call_.kind, 0);
  made.led = true;
  made.total = made.count;
  made.order = nullptr;
  made.root = roots_place_;
  if (is(Kind::kAllgather)) made.count = call_.count;
  if (is(Kind::kAllreduce) && !in_place()) made.send = input();
  if (is(Kind::kReduceScatterBlock)) made.send = input() == kInPlace ? call_.out.data : input();
  return made;
}

// The first operation on the host announces the call.
std::optional<NodeCall> HierarchicalOperation::call_before(std::size_t piece) {
  if (is(Kind::kAllgather) || (is(Kind::kBcast) && !on_roots_host())) {
    if (piece > 0) return std::nullopt;
    return NodeCall{.signature = scheduled_.signature()};
  }
  if (is(Kind::kBcast)) {
    NodeCall made = on_vector(Kind::kBcast, piece);
    made.parts = nullptr;
    made.root = roots_place_;
    return made;
  }
  NodeCall made = on_vector(Kind::kReduceScatterBlock, piece);
  if (is(Kind::kReduceScatterBlock)) {
    made.send = input() == kInPlace ? call_.out.data : input();
  } else if (!in_place()) {
    made.send = static_cast<const std::byte*>(input()) + pieces().begin(piece) * made.element;
  }
  return made;
}

std::optional<NodeCall> HierarchicalOperation::call_after(std::size_t piece) {
  if (is(Kind::kReduceScatterBlock) || on_roots_host()) return std::nullopt;
  return on_vector(Kind::kAllgather, piece);
}

}  // namespace gradred
