#include "schedule/verify.h"

#include <algorithm>
#include <utility>

#include "base/leaf_tree.h"
#include "schedule/algorithms.h"
#include "schedule/leaf_schedule.h"
#include "schedule/replay.h"
#include "schedule/values.h"

namespace gradred {
namespace {

// A slot of the scratch buffer. A step writes a run of chunks, which lie side by side from the
// run's first slot on. Chunks differ in length, so the place of a chunk depends on where its run
// begins. A reader must therefore name the same beginning as the writer.
struct Cell {
  Value value = kNothing;
  std::uint32_t slot = 0, first = 0;  // the beginning of the run with which the value was written
};

struct Rank {
  const Schedule* schedule = nullptr;
  std::vector<Value> work;
  std::vector<Value> input;  // empty if the schedule is in place; its vectors one after another
  std::vector<Cell> scratch, coded;

  std::vector<Cell>& slots(const Span& span) {
    return span.buffer == BufferId::kCoded ? coded : scratch;
  }
  const std::vector<Cell>& slots(const Span& span) const {
    return span.buffer == BufferId::kCoded ? coded : scratch;
  }
};

// The visitor of a replay that computes with symbolic values. A message is transferred when both
// its ends are posted, and a rank finishes its round when this holds for all its messages.
class Verifier {
 public:
  explicit Verifier(const std::vector<Schedule>& schedules);
  Report run();

  // Called by the replay.
  std::uint32_t post(const MessageEnd&) { return 0; }
  void met(const MessageEnd& sent, const MessageEnd& received);
  void unblocked(std::size_t rank) { ready_.push_back(rank); }

 private:
  [[noreturn]] void fail(const MessageEnd& where, std::string reason) const;
  void initialise(Rank& rank);
  void finish_round(std::size_t rank);
  Value read(const MessageEnd& reader, const Span& span, std::uint32_t i) const;
  void write(Rank& rank, const Span& span, std::uint32_t i, Value value);
  void begin_write(Rank& rank, const Span& span);
  void explain_deadlock() const;
  void check_final();
  void check_chunk(const Rank& rank, std::uint32_t chunk);
  Value sum_of(const LeafNode& node, std::uint32_t chunk);
  void check_sum(const Rank& rank, std::uint32_t chunk, Value value) const;

  const Schedule& head_;
  const LeafTree tree_;  // of the leaves, if the schedules have any
  Replay replay_;
  Values values_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> ready_;  // ranks whose messages of the round have all completed
  Report report_;
};

Verifier::Verifier(const std::vector<Schedule>& schedules)
    : head_(schedules.front()),
      tree_(head_.leaves),
      replay_(schedules),
      values_(head_.leaves.empty() ? head_.size : static_cast<int>(tree_.leaves()), head_.chunks) {
  for (const Schedule& schedule : schedules) {
    ranks_.emplace_back().schedule = &schedule;
    report_.rounds = std::max(report_.rounds, schedule.rounds.size());
  }
}

void Verifier::fail(const MessageEnd& where, std::string reason) const {
  throw ScheduleError({static_cast<int>(where.rank), static_cast<int>(where.round),
                       static_cast<int>(where.step), std::move(reason)});
}

void Verifier::initialise(Rank& rank) {
  const int r = rank.schedule->rank;
  rank.work.assign(head_.chunks, kNothing);
  if (!rank.schedule->in_place) rank.input = rank.work;
  std::vector<Value>& given = rank.schedule->in_place ? rank.work : rank.input;
  rank.scratch.resize(rank.schedule->scratch_slots);
  rank.coded.resize(rank.schedule->coded_slots);
  for (std::vector<Cell>* cells : {&rank.scratch, &rank.coded}) {
    for (std::uint32_t slot = 0; slot < cells->size(); ++slot) (*cells)[slot].slot = slot;
  }
  if (!head_.leaves.empty()) {
    rank.input.clear();
    for (const LeafNode& part : tree_.parts_of(static_cast<std::size_t>(r))) {
      for (std::uint32_t chunk = 0; chunk < head_.chunks; ++chunk) {
        rank.input.push_back(sum_of(part, chunk));
      }
    }
    return;
  }
  const Span input = input_of(*rank.schedule);
  for (std::uint32_t i = 0; i < input.chunks; ++i) {
    given[input.first + i] = values_.input(r, input.first + i);
  }
}

Report Verifier::run() {
  for (Rank& rank : ranks_) initialise(rank);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) replay_.enter(rank, *this);
  while (!ready_.empty()) {
    const std::size_t rank = ready_.back();
    ready_.pop_back();
    finish_round(rank);
    replay_.leave(rank);
    replay_.enter(rank, *this);
  }
  explain_deadlock();
  check_final();
  report_.ok = true;
  report_.sums = values_.sums();
  return report_;
}

void Verifier::met(const MessageEnd& sent, const MessageEnd& received) {
  const Span& source = sent.what.source;
  const Span& target = received.what.target;
  const auto form = [&](const MessageEnd& end, const Span& span) {
    const bool is_coded = span.buffer == BufferId::kCoded;
    return is_coded ? ranks_[end.rank].schedule->wire : Wire::kNone;
  };
  const bool same_form = form(sent, source) == form(received, target);
  if (source.first != target.first || source.chunks != target.chunks || !same_form) {
    fail(received, "receives " + describe(target) + " where rank " + std::to_string(sent.rank) +
                       " (round " + std::to_string(sent.round) + ", step " +
                       std::to_string(sent.step) + ") sends " + describe(source));
  }
  Rank& to = ranks_[received.rank];
  begin_write(to, target);
  for (std::uint32_t i = 0; i < source.chunks; ++i) write(to, target, i, read(sent, source, i));
  ++report_.messages;
}

void Verifier::finish_round(std::size_t number) {
  Rank& rank = ranks_[number];
  const Round& steps = replay_.steps(number);
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const Step& local = steps[step];
    if (is_message(local.kind)) continue;
    const MessageEnd here{number, replay_.round(number), step, local};
    const bool rewrites = local.kind == StepKind::kReduce && local.operand == local.target;
    if (!rewrites) begin_write(rank, local.target);
    for (std::uint32_t i = 0; i < local.source.chunks; ++i) {
      const Place formed{static_cast<int>(number), static_cast<int>(here.round),
                         static_cast<int>(step)};
      Value value = read(here, local.source, i);
      if (local.target.buffer == BufferId::kCoded) value = values_.encoded(value, formed);
      if (local.kind == StepKind::kReduce) {
        value = values_.sum(value, read(here, local.operand, i), formed);
      }
      write(rank, local.target, i, value);
    }
  }
}

Value Verifier::read(const MessageEnd& reader, const Span& span, std::uint32_t i) const {
  const Rank& rank = ranks_[reader.rank];
  Value value = kNothing;
  if (!is_in_slots(span.buffer)) {
    const bool is_work = span.buffer == BufferId::kWork;
    const std::size_t vector = is_work ? 0 : std::size_t{span.slot} * head_.chunks;
    value = (is_work ? rank.work : rank.input)[vector + span.first + i];
  } else {
    const Cell& cell = rank.slots(span)[span.slot + i];
    value = cell.value;
    if (value != kNothing && (cell.slot != span.slot || cell.first != span.first)) {
      fail(reader, describe(reader.what) + ": slot " + std::to_string(span.slot + i) +
                       " was written as part of a run from chunk " + std::to_string(cell.first) +
                       " in slot " + std::to_string(cell.slot));
    }
  }
  if (value == kNothing) {
    fail(reader, describe(reader.what) + ": nobody has written chunk " +
                     std::to_string(span.first + i) + " there");
  }
  return value;
}

void Verifier::write(Rank& rank, const Span& span, std::uint32_t i, Value value) {
  if (span.buffer == BufferId::kWork) {
    rank.work[span.first + i] = value;
  } else {
    rank.slots(span)[span.slot + i] = {value, span.slot, span.first};
  }
}

// A new run destroys the rest of an older run that began before the new run's end: the chunks of
// the older run lie side by side, so they may lie lower than their slots. Only a write with the
// older run's own beginning leaves the rest of it intact.
void Verifier::begin_write(Rank& rank, const Span& span) {
  if (span.buffer == BufferId::kWork) return;
  std::vector<Cell>& cells = rank.slots(span);
  const Cell& head = cells[span.slot];
  if (head.value != kNothing && head.slot == span.slot && head.first == span.first) return;
  const std::uint32_t end = span.slot + span.chunks;
  for (std::uint32_t slot = end; slot < cells.size(); ++slot) {
    if (cells[slot].slot >= end) break;
    cells[slot] = {kNothing, slot, 0};
  }
}

void Verifier::explain_deadlock() const {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (replay_.done(rank)) continue;
    const MessageEnd& waiting = replay_.posted(rank).front();
    const auto peer = static_cast<std::size_t>(waiting.what.peer);
    std::string reason = describe(waiting.what) + " is never met: rank " + std::to_string(peer);
    if (replay_.done(peer)) {
      reason += " has finished";
    } else {
      reason += " waits in round " + std::to_string(replay_.round(peer)) + " to " +
                describe(replay_.posted(peer).front().what);
    }
    fail(waiting, std::move(reason));
  }
}

void Verifier::check_final() {
  for (const Rank& rank : ranks_) {
    const Span result = result_of(*rank.schedule);
    for (std::uint32_t i = 0; i < result.chunks; ++i) check_chunk(rank, result.first + i);
  }
}

void Verifier::check_chunk(const Rank& rank, std::uint32_t chunk) {
  const Value value = rank.work[chunk];
  const auto fail_end = [&](const std::string& reason) {
    throw ScheduleError({rank.schedule->rank, -1, -1,
                         "ends with chunk " + std::to_string(chunk) + " wrong: " + reason});
  };
  if (value == kNothing) fail_end("nobody has written it");
  const KindInfo& kind = info_of(head_.collective);
  if (!reduces(head_.collective)) {
    // No other input of this chunk exists, and steps keep values in their chunk.
    if (!values_.is_input(value)) fail_end("inputs were added up");
  } else if (!head_.leaves.empty()) {
    if (value != sum_of(tree_.root(), chunk)) {
      check_sum(rank, chunk, value);
      fail_end("its leaves are not added up by their tree");
    }
  } else if (kind.result == Part::kVector && !sums_differ(head_.collective) &&
             &rank != &ranks_[0]) {
    if (value != ranks_[0].work[chunk]) {
      check_sum(rank, chunk, value);
      fail_end("it is added up in another order than on rank 0");
    }
  } else {
    check_sum(rank, chunk, value);
  }
  report_.digest = report_.digest * 0x9e3779b97f4a7c15ULL + values_.hash(value);
}

// The sum of a node of the tree of leaves.
Value Verifier::sum_of(const LeafNode& node, std::uint32_t chunk) {
  if (node.width == 1) return values_.input(static_cast<int>(node.first), chunk);
  const Value left = sum_of(node.left(), chunk);
  return tree_.has_right(node) ? values_.sum(left, sum_of(node.right(), chunk), {}) : left;
}

void Verifier::check_sum(const Rank& rank, std::uint32_t chunk, Value value) const {
  const bool of_leaves = !head_.leaves.empty();
  const RankRange wanted = of_leaves
                               ? RankRange{0, static_cast<int>(tree_.leaves())}
                               : reduced_ranks(head_.collective, rank.schedule->rank, head_.size);
  const std::string an_input = of_leaves ? " leaf " : " the input of rank ";
  if (values_.each_once(value, wanted)) return;
  const std::string result = "the result for chunk " + std::to_string(chunk);
  const std::vector<std::uint64_t> counts = values_.ranks(value);
  for (std::size_t input = 0; input < counts.size(); ++input) {
    const bool is_wanted = wanted.has(static_cast<int>(input));
    if (counts[input] == (is_wanted ? 1U : 0U)) continue;
    if (counts[input] == 0 || !is_wanted) {
      throw ScheduleError({rank.schedule->rank, -1, -1,
                           result + (is_wanted ? " lacks" : " has") + an_input +
                               std::to_string(input) + (is_wanted ? "" : ", which it must not")});
    }
    const Place place = values_.sum_of(values_.doubled(value)).formed;
    throw ScheduleError({place.rank, place.round, place.step,
                         result + " on rank " + std::to_string(rank.schedule->rank) +
                             " counts an input twice: this sum has it on both sides"});
  }
}

// The limit for chunks and slots of all ranks together: 3 GiB of symbolic state. Values then fit 32
// bits.
constexpr std::uint64_t kCellsAtMost = std::uint64_t{1} << 28;

// Checks what all ranks must have in common before they can be run together.
void check_together(const std::vector<Schedule>& schedules) {
  if (schedules.empty()) throw ScheduleError({-1, -1, -1, "there is no schedule"});
  const Schedule& head = schedules.front();
  if (schedules.size() != static_cast<std::size_t>(std::max(head.size, 0))) {
    throw ScheduleError({-1, -1, -1,
                         std::to_string(schedules.size()) + " schedules were given for " +
                             std::to_string(head.size) + " ranks"});
  }
  std::uint64_t cells = 0;
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    const Schedule& schedule = schedules[rank];
    const int r = static_cast<int>(rank);
    if (schedule.rank != r) {
      throw ScheduleError(
          {r, -1, -1, "this place holds the schedule of rank " + std::to_string(schedule.rank)});
    }
    if (schedule.size != head.size || schedule.chunks != head.chunks ||
        schedule.root != head.root || schedule.collective != head.collective ||
        schedule.leaves != head.leaves) {
      throw ScheduleError(
          {r, -1, -1, "size, chunks, root, collective or leaves differ from rank 0's"});
    }
    validate(schedule);
    cells += vectors_of_input(schedule) * schedule.chunks;
    cells += std::uint64_t{schedule.chunks} * (schedule.in_place ? 1 : 2) + schedule.scratch_slots +
             schedule.coded_slots;
    if (cells > kCellsAtMost) {
      throw ScheduleError({r, -1, -1, "too large to verify: more than 2^28 chunks and slots"});
    }
  }
}

}  // namespace

Report verify(const std::vector<Schedule>& schedules) {
  try {
    check_together(schedules);
    return Verifier(schedules).run();
  } catch (const ScheduleError& error) {
    Report report;
    report.problem = error.problem();
    return report;
  }
}

}  // namespace gradred
