#include "simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "base/mixed.h"
#include "schedule/cost.h"
#include "schedule/replay.h"
#include "schedule/validate.h"
#include "simulate/events.h"
#include "simulate/flows.h"
#include "simulate/fold.h"

namespace gradred {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

struct Message {
  double bytes = 0;
  double injected = 0;                 // when the sender's processor has started it
  double stretch = 1;                  // noise
  std::uint32_t from = 0, to = kNone;  // executions; `to` is known when the ends have met
  std::uint64_t connection = 0;        // the pair of ranks
  std::uint32_t next = kNone;          // the message that follows on this connection
  bool waits_for_receiver = false;
  bool has_arrived = false;
  Route route{};
};

// The visitor of a replay in simulated time. An execution is what the replay calls a rank: one copy
// of a rank's schedule.
class Simulation {
 public:
  Simulation(const std::vector<Schedule>& schedules, const Cluster& cluster,
             const SimulatedRun& run);
  Simulated run();

  // Called by the replay.
  std::uint32_t post(const MessageEnd& end);
  void met(const MessageEnd& send, const MessageEnd& recv);
  void unblocked(std::size_t) {}

 private:
  void at(double time, Event::Kind kind, std::uint32_t id, std::uint32_t version = 0);
  void happen(const Event& event);
  void enter(std::size_t execution);
  void start(std::uint32_t id);
  void transfer(std::uint32_t id);
  void end(std::uint32_t id);
  void look_at(const Event& event);
  void arrive(std::uint32_t id);
  void receive(std::uint32_t id, bool is_late);
  void complete_one(std::size_t execution);
  void finish_round(std::size_t execution);
  void check_done() const;
  std::uint32_t new_message();
  double work(std::size_t rank, double seconds);
  double stretch(std::uint64_t a, std::uint64_t b, std::uint64_t c) const;
  double bytes_of(const Span& span) const { return chunk_ * span.chunks; }
  std::size_t rank_of(std::size_t execution) const { return execution % processors_.size(); }

  const Cluster& cluster_;
  const SimulatedRun& run_;
  const double chunk_;  // bytes
  Replay replay_;
  Network network_;
  Flows flows_;
  std::vector<double> processors_;    // by rank: until when it is busy
  std::vector<std::size_t> waiting_;  // by execution: messages of its round that have not completed
  std::vector<Message> messages_;
  std::vector<std::uint32_t> free_messages_;
  std::unordered_map<std::uint64_t, std::uint32_t> last_on_;  // the last message of a connection
  EventQueue events_;
  double now_ = 0, end_ = 0;
  Simulated result_;
};

double chunk_bytes(const Schedule& schedule, const SimulatedRun& run) {
  return run.bytes / static_cast<double>(run.slices) / schedule.chunks;
}

Simulation::Simulation(const std::vector<Schedule>& schedules, const Cluster& cluster,
                       const SimulatedRun& run)
    : cluster_(cluster),
      run_(run),
      chunk_(chunk_bytes(schedules.front(), run)),
      replay_(schedules, run.slices),
      network_(cluster, schedules.size()),
      flows_(network_.speeds()),
      processors_(schedules.size()),
      waiting_(replay_.ranks()) {
  result_.ranks = cluster.size();
  result_.simulated = schedules.size();
  for (const Schedule& schedule : schedules) {
    result_.rounds = std::max(result_.rounds, schedule.rounds.size());
  }
}

Simulated Simulation::run() {
  for (std::size_t i = 0; i < waiting_.size(); ++i) enter(i);
  const auto settle = [&] {
    flows_.settle(now_, [&](std::uint32_t id, double time, std::uint32_t version) {
      at(time, Event::Kind::kEnd, id, version);
    });
  };
  for (settle(); !events_.empty(); settle()) {
    now_ = events_.next_time();
    while (!events_.empty() && events_.next_time() == now_) {
      for (const Event& event : events_.take()) happen(event);
    }
  }
  check_done();
  const auto each_stands_for = static_cast<double>(result_.ranks / result_.simulated);
  result_.seconds = end_;
  result_.messages *= result_.ranks / result_.simulated;
  result_.across *= each_stands_for;
  return result_;
}

void Simulation::at(double time, Event::Kind kind, std::uint32_t id, std::uint32_t version) {
  events_.add(time, {id, version, kind});
}

void Simulation::happen(const Event& event) {
  ++result_.events;
  switch (event.kind) {
    case Event::Kind::kEnter:
      return enter(event.id);
    case Event::Kind::kStart:
      return start(event.id);
    case Event::Kind::kEnd:
      return look_at(event);
  }
}

void Simulation::look_at(const Event& event) {
  if (event.version != flows_.version(event.id)) return;  // the message has become faster since
  double again = 0;
  if (!flows_.has_ended(event.id, now_, again)) {
    return at(again, Event::Kind::kEnd, event.id, event.version);
  }
  end(event.id);
}

// While the rank posts, the round counts as one message more, so that it is not over too early.
void Simulation::enter(std::size_t execution) {
  if (replay_.done(execution)) return;
  waiting_[execution] = 1;
  replay_.enter(execution, *this);
  complete_one(execution);
}

std::uint32_t Simulation::post(const MessageEnd& end) {
  if (end.what.kind == StepKind::kRecv) {
    ++waiting_[end.rank];
    return kNone;
  }
  const std::size_t rank = rank_of(end.rank);
  const auto to = static_cast<std::size_t>(end.what.peer);
  const std::uint32_t id = new_message();
  Message& message = messages_[id];
  message.bytes = bytes_of(end.what.source);
  if (end.what.source.buffer == BufferId::kCoded) {
    message.bytes *= wire_share(replay_.schedule(end.rank).wire);
  }
  message.injected = work(rank, cluster_.send_overhead);
  message.stretch = stretch(end.rank, end.round, end.step);
  message.from = static_cast<std::uint32_t>(end.rank);
  message.to = kNone;
  message.has_arrived = false;
  message.connection = std::uint64_t{rank} << 32 | static_cast<std::uint32_t>(end.what.peer);
  message.next = kNone;
  message.waits_for_receiver = message.bytes > cluster_.rendezvous;
  network_.route(rank, to, message.route);
  message.route.latency *= message.stretch;
  ++result_.messages;
  if (network_.crosses(rank, to)) result_.across += message.bytes;
  if (message.waits_for_receiver) {
    ++waiting_[end.rank];
  } else {
    at(message.injected + message.route.latency, Event::Kind::kStart, id);
  }
  return id;
}

void Simulation::met(const MessageEnd& send, const MessageEnd& recv) {
  Message& message = messages_[send.mark];
  message.to = static_cast<std::uint32_t>(recv.rank);
  if (message.waits_for_receiver) {
    // The request of the sender arrives, and the receiver's answer goes back.
    const double asked = std::max(message.injected + message.route.latency, now_);
    at(asked + 2 * message.route.latency, Event::Kind::kStart, send.mark);
  } else if (message.has_arrived) {
    receive(send.mark, true);
  }
}

// If `in_order`, a connection of two ranks carries one message after the other.
void Simulation::start(std::uint32_t id) {
  if (messages_[id].bytes == 0) return arrive(id);
  if (!cluster_.in_order) return transfer(id);
  const auto [last, is_free] = last_on_.try_emplace(messages_[id].connection, id);
  if (is_free) return transfer(id);
  messages_[last->second].next = id;
  last->second = id;
}

void Simulation::transfer(std::uint32_t id) {
  const Message& message = messages_[id];
  flows_.start(id, message.bytes * message.stretch, message.route.stream, message.route.links);
}

void Simulation::end(std::uint32_t id) {
  flows_.end(id);
  if (!cluster_.in_order) return arrive(id);
  if (messages_[id].next == kNone) {
    last_on_.erase(messages_[id].connection);
  } else {
    transfer(messages_[id].next);
  }
  arrive(id);
}

void Simulation::arrive(std::uint32_t id) {
  Message& message = messages_[id];
  if (message.waits_for_receiver) complete_one(message.from);
  message.has_arrived = true;
  if (message.to != kNone) receive(id, false);
}

void Simulation::receive(std::uint32_t id, bool is_late) {
  const Message& message = messages_[id];
  const std::uint32_t execution = message.to;
  const double copied = is_late ? message.bytes * cluster_.copy : 0;
  work(rank_of(execution), cluster_.receive_overhead + copied);
  free_messages_.push_back(id);
  complete_one(execution);
}

void Simulation::complete_one(std::size_t execution) {
  if (--waiting_[execution] == 0) finish_round(execution);
}

void Simulation::finish_round(std::size_t execution) {
  double seconds = 0;
  for (const Step& step : replay_.steps(execution)) {
    if (is_message(step.kind)) continue;
    const double bytes = step.target.chunks * chunk_;
    const double each = uses_codec(step)                 ? kCodec * cluster_.reduce
                        : step.kind == StepKind::kReduce ? cluster_.reduce
                                                         : cluster_.copy;
    seconds += bytes * each;
  }
  seconds *= stretch(execution, replay_.round(execution), ~std::uint64_t{0});
  const double done = work(rank_of(execution), seconds);
  replay_.leave(execution);
  if (replay_.done(execution)) {
    end_ = std::max(end_, done);
  } else {
    at(done, Event::Kind::kEnter, static_cast<std::uint32_t>(execution));
  }
}

void Simulation::check_done() const {
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    if (replay_.done(i)) continue;
    throw ScheduleError({static_cast<int>(rank_of(i)), static_cast<int>(replay_.round(i)), -1,
                         "waits for ever; gradred.schedules.verify() says for what"});
  }
}

std::uint32_t Simulation::new_message() {
  if (!free_messages_.empty()) {
    const std::uint32_t id = free_messages_.back();
    free_messages_.pop_back();
    return id;
  }
  messages_.emplace_back();
  return static_cast<std::uint32_t>(messages_.size() - 1);
}

// The rank's processor does one thing after the other. Returns when this is done.
double Simulation::work(std::size_t rank, double seconds) {
  return processors_[rank] = std::max(processors_[rank], now_) + seconds;
}

// A factor that depends on its arguments and the seed alone, not on the order of events. Source of
// the normal deviates: Box and Muller, "A note on the generation of random normal deviates", 1958.
double Simulation::stretch(std::uint64_t a, std::uint64_t b, std::uint64_t c) const {
  if (cluster_.noise == 0) return 1;
  const std::uint64_t bits = mixed(mixed(mixed(mixed(run_.seed) + a) + b) + c);
  const auto unit = [](std::uint64_t n) { return (static_cast<double>(n >> 11) + 0.5) * 0x1p-53; };
  const double normal =
      std::sqrt(-2 * std::log(unit(bits))) * std::cos(2 * std::numbers::pi * unit(mixed(bits + 1)));
  return std::exp(cluster_.noise * normal);
}

// Limits for a comparison of all ranks that lets fewer be simulated: the rounds of all ranks (some
// seconds), and those of the ranks that stand for all (some 50 MiB).
constexpr std::size_t kMostCompared = std::size_t{1} << 23;
constexpr std::size_t kMostHeld = std::size_t{1} << 18;

bool is_short(std::size_t rounds, const Network& network, std::size_t size) {
  return rounds * size <= kMostCompared && rounds * network.period() <= kMostHeld;
}

void check(const SimulatedRun& run) {
  if (!(run.bytes >= 0) || !std::isfinite(run.bytes)) throw UsageError("no number of bytes");
  if (run.slices == 0) throw UsageError("a vector has at least one slice");
}

// How many ranks to simulate.
template <class IsAlike>
std::size_t ranks_to_simulate(const Cluster& cluster, const SimulatedRun& run, IsAlike is_alike) {
  check(run);
  const Network network(cluster, cluster.size());
  if (!run.fold || cluster.noise > 0 || network.period() == cluster.size()) return cluster.size();
  return is_alike(network) ? network.period() : cluster.size();
}

}  // namespace

Simulated simulate(const std::vector<Schedule>& schedules, const Cluster& cluster,
                   const SimulatedRun& run) {
  if (schedules.empty() || schedules.size() != cluster.size()) {
    throw UsageError(std::to_string(schedules.size()) + " schedules were given for " +
                     std::to_string(cluster.size()) + " ranks");
  }
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    const Schedule& schedule = schedules[rank];
    if (schedule.rank != static_cast<int>(rank) || schedule.chunks != schedules.front().chunks ||
        schedule.size != schedules.front().size) {
      throw ScheduleError({static_cast<int>(rank), -1, -1,
                           "the schedules are not those of all ranks, in order, of one operation"});
    }
    validate(schedule);
  }
  const std::size_t ranks = ranks_to_simulate(cluster, run, [&](const Network& network) {
    return is_short(schedules.front().rounds.size(), network, schedules.size()) &&
           is_alike([&](std::size_t rank) { return schedules[rank]; }, schedules.size(),
                    network.period(), network);
  });
  const auto end = schedules.begin() + static_cast<std::ptrdiff_t>(ranks);
  return Simulation({schedules.begin(), end}, cluster, run).run();
}

Simulated simulate(Kind collective, std::string_view name, const Parameters& parameters,
                   const Cluster& cluster, const SimulatedRun& run) {
  const auto size = static_cast<int>(cluster.size());
  const auto schedule_of = [&](std::size_t rank) {
    return make_schedule(collective, name, static_cast<int>(rank), size, parameters);
  };
  const std::size_t ranks = ranks_to_simulate(cluster, run, [&](const Network& network) {
    if (is_symmetric(collective, name, parameters, cluster.size(), network.period())) return true;
    return is_short(schedule_of(0).rounds.size(), network, cluster.size()) &&
           is_alike(schedule_of, cluster.size(), network.period(), network);
  });
  std::vector<Schedule> schedules;
  for (std::size_t rank = 0; rank < ranks; ++rank) schedules.push_back(schedule_of(rank));
  return Simulation(schedules, cluster, run).run();
}

}  // namespace gradred
