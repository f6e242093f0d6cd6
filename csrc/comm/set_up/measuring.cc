#include "comm/set_up/measuring.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/types.h"
#include "calls/plan_choice.h"
#include "comm/set_up/day.h"
#include "families/messages/scheduled.h"
#include "mpi/mpi.h"
#include "plan/selector.h"
#include "reduce/reduce.h"

namespace gradred {
namespace {

constexpr std::size_t kBriefBytes = 8;
constexpr std::size_t kLengthyBytes = std::size_t{256} << 10;
constexpr std::size_t kCutBytes = std::size_t{512} << 10;
constexpr int kFurtherMessages = 4;
// Nanoseconds: for one figure, and for all allreduces together.
constexpr std::uint64_t kPerFigure = 8'000'000, kForSizes = 600'000'000;
constexpr std::uint64_t kSeries = 500'000, kMostInSeries = 6;  // nanoseconds and calls
constexpr std::uint64_t kFewestTurns = 5, kMostTurns = 25;
// Measured in this order: first what gives a rough picture, then as much as there is time for.
constexpr std::array<std::size_t, 12> kMeasuredBytes = {8,       64 << 10, 1 << 20,   4 << 10,
                                                        512,     16 << 10, 256 << 10, 32 << 10,
                                                        8 << 10, 4 << 20,  128 << 10, 16 << 20};
constexpr std::size_t kRough = 3;
constexpr std::size_t kShortCall = std::size_t{32} << 10;
constexpr double kBriefCall = 2e-3;    // seconds
constexpr double kLongestRough = 0.1;  // seconds that a call may take
constexpr DType kMeasuredType = DType::kFloat32;

double seconds(std::uint64_t ns) { return 1e-9 * static_cast<double>(ns); }

// Runs a schedule in one slice on a vector of zeros, again and again.
class Trial {
 public:
  Trial(const Schedule& schedule, std::size_t bytes, MpiTransport& transport)
      : tag_(static_cast<std::uint32_t>(transport.tags().tag(0))),
        work_(bytes / size_of(kMeasuredType)) {
    BoundPlanKey key;
    key.count = work_.size();
    key.dtype = kMeasuredType;
    bound_plan_ = bind_plan(std::move(key), std::make_shared<const Schedule>(schedule), transport);
  }

  void start() {
    const Signature signature =
        make_signature(Kind::kAllreduce, Op::kSum, kMeasuredType, work_.size());
    bound_plan_->slices.front()->start(work_.data(), nullptr, tag_, signature);
  }
  bool advance() { return bound_plan_->slices.front()->advance(); }

 private:
  std::uint32_t tag_;
  std::vector<float> work_;
  std::unique_ptr<BoundPlan> bound_plan_;
};

class Measuring {
 public:
  Measuring(SetUpCalls& calls, MpiTransport& transport, const Place& place, const Trials& trials)
      : calls_(calls),
        transport_(transport),
        place_(place),
        topology_(place.topology),
        trials_(trials) {}

  Figures all() {
    measure_links();
    measure_core();
    const auto meet = [&] {
      if (trials_.meet_on_host) trials_.meet_on_host();
    };
    figures_.model.on_host = seconds(agreed_time(meet, kPerFigure / 8));
    calls_.bcast(&figures_.model, sizeof figures_.model);
    figures_.announcement = seconds(agreed_time([&] { announce(); }, kPerFigure));
    measure_sizes();
    figures_.day = today();
    return figures_;
  }

 private:
  // For each value the largest of all ranks.
  std::vector<std::uint64_t> agreed(std::vector<std::uint64_t> mine) {
    const auto size = static_cast<std::size_t>(calls_.size());
    std::vector<std::uint64_t> all(size * mine.size());
    calls_.allgather(mine.data(), mine.size() * sizeof mine[0], all.data());
    for (std::size_t i = 0; i < all.size(); ++i) {
      mine[i % mine.size()] = std::max(mine[i % mine.size()], all[i]);
    }
    return mine;
  }
  std::uint64_t agreed(std::uint64_t mine) { return agreed(std::vector{mine}).front(); }

  // The time of body(), without the time that this rank has waited for others before.
  template <class Body>
  std::uint64_t time_together(Body&& body) {
    calls_.barrier();
    return time_of(body);
  }

  template <class Body>
  static std::uint64_t time_of(Body&& body) {
    const std::uint64_t begin = now_ns();
    body();
    return now_ns() - begin;
  }

  static std::uint64_t median(std::vector<std::uint64_t> times) {
    std::ranges::sort(times);
    return times[times.size() / 2];
  }

  std::uint64_t turns_within(std::uint64_t budget, std::uint64_t one) {
    return std::clamp(budget / std::max<std::uint64_t>(one, 1), kFewestTurns, kMostTurns);
  }

  // The median time over some turns, of the slowest rank.
  template <class Body>
  std::uint64_t agreed_time(Body&& body, std::uint64_t budget) {
    body();
    const std::uint64_t turns = turns_within(budget, agreed(time_of(body)));
    std::vector<std::uint64_t> times;
    for (std::uint64_t turn = 0; turn < turns; ++turn) times.push_back(time_of(body));
    return agreed(median(std::move(times)));
  }

  void run(Trial& trial) {
    trial.start();
    calls_.wait([&] { return trial.advance(); });
  }

  // The agreement that comes before a call of the MPI.
  void announce() {
    const Call agreement{.agreement = make_signature(Kind::kLeftToMpi, Op::kSum, DType::kUInt8, 0)};
    trials_.run(agreement, weighed(0, plan_of_agreements(place_)).front());
  }

  // ---- links: all ranks that have a partner exchange with it at once, as in a schedule ---------

  int host_of(int rank) const { return topology_.host_of[static_cast<std::size_t>(rank)]; }
  std::vector<int> ranks_on(int host) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < calls_.size(); ++rank) {
      if (host_of(rank) == host) ranks.push_back(rank);
    }
    return ranks;
  }

  // The partner is -1 if there is none.
  int partner_inside() const {
    const std::vector<int> here = ranks_on(host_of(calls_.rank()));
    const auto place =
        static_cast<std::size_t>(std::ranges::find(here, calls_.rank()) - here.begin());
    return (place ^ 1) < here.size() ? here[place ^ 1] : -1;
  }
  int partner_across() const {
    const int host = host_of(calls_.rank());
    const std::vector<int> here = ranks_on(host), there = ranks_on(host ^ 1);
    const auto place =
        static_cast<std::size_t>(std::ranges::find(here, calls_.rank()) - here.begin());
    return place < there.size() ? there[place] : -1;
  }

  std::uint64_t exchange_time(int partner, std::size_t bytes, int messages = 1) {
    Schedule schedule;
    schedule.name = "exchange";
    schedule.rank = calls_.rank();
    schedule.size = calls_.size();
    schedule.scratch_slots = static_cast<std::uint32_t>(messages);
    Round round;
    for (int message = 0; partner >= 0 && message < messages; ++message) {
      round.push_back(send(partner, work(0)));
      round.push_back(recv(partner, scratch(static_cast<std::uint32_t>(message), 0)));
    }
    schedule.rounds = std::vector<Round>{round};
    Trial trial(schedule, bytes, transport_);
    return agreed_time([&] { run(trial); }, kPerFigure);
  }

  // The time per byte counts the bytes of all `pairs` that share the link.
  Link link(int partner, std::size_t pairs) {
    const std::uint64_t brief = exchange_time(partner, kBriefBytes);
    const std::uint64_t lengthy = std::max(brief, exchange_time(partner, kLengthyBytes));
    const auto bytes = static_cast<double>(pairs * (kLengthyBytes - kBriefBytes));
    return {seconds(brief), std::max(seconds(lengthy - brief) / bytes, 1e-13)};
  }

  // Messages stay whole only if that is clearly faster, as with RDMA. Over other networks, whole
  // messages cost much at some lengths and little at others.
  void choose_pieces(int across) {
    std::uint64_t whole_took = 0;
    const auto faster_whole = [&](std::size_t bytes) {
      const auto took = [&](std::size_t piece) {
        transport_.cut_messages(topology_.host_of, piece);
        return exchange_time(across, bytes);
      };
      whole_took = took(0);
      return whole_took * 5 < took(kPieceBytes) * 4;
    };
    const bool whole =
        faster_whole(kCutBytes) && (whole_took > kPerFigure / 4 || faster_whole(4 * kCutBytes));
    figures_.piece_bytes = whole ? 0 : kPieceBytes;
    transport_.cut_messages(topology_.host_of, figures_.piece_bytes);
  }

  void measure_links() {
    CostModel& model = figures_.model;
    const int across = partner_across();
    choose_pieces(across);
    const std::size_t pairs = std::min(ranks_on(0).size(), ranks_on(1).size());
    model.across = link(across, pairs);
    const std::uint64_t more = exchange_time(across, kBriefBytes, 1 + kFurtherMessages);
    model.gap = std::max(0.0, seconds(more) - model.across.alpha) / kFurtherMessages;
    const bool all_alone = topology_.hosts == calls_.size();
    model.inside = all_alone ? model.across : link(partner_inside(), 1);
  }

  void measure_core() {
    const std::size_t count = kLengthyBytes / size_of(kMeasuredType);
    std::vector<float> a(count), b(count), target(count);
    const auto* reduce = find_reduction(Op::kSum, kMeasuredType);
    const auto add = [&] { reduce->pair(target.data(), a.data(), b.data(), count); };
    const auto copy = [&] { std::memcpy(target.data(), a.data(), kLengthyBytes); };
    figures_.model.gamma = seconds(agreed_time(add, kPerFigure / 8)) / kLengthyBytes;
    figures_.model.delta = seconds(agreed_time(copy, kPerFigure / 8)) / kLengthyBytes;
  }

  // ---- allreduces: gradred's and the MPI's in turn ---------------------------------------------

  std::vector<Plan> weighed(std::size_t bytes, std::string_view name = {}) const {
    Place place = place_;
    place.costs = std::make_shared<Costs>(topology_, figures_);
    const Question question{
        .bytes = bytes, .plan = name, .most_slices = transport_.tags().most_slices()};
    return weigh(trials_.sources, question, place);
  }

  // The plan that costs least in the model, the best plan of another family, and the next plans of
  // the first one's family that are not the same by another name. The model knows nothing of
  // lengths at which the MPI sends messages in another way, and little of ranks that share cores.
  // Plans that would take long are left out.
  std::vector<Plan> worth_trying(std::size_t bytes) const {
    const std::vector<Plan> plans = weighed(bytes);
    const Plan& best = plans.front();
    const bool is_short = bytes <= kShortCall;
    const double most = is_short ? kBriefCall : 3 * best.seconds;
    std::vector<Plan> found = {best};
    const auto add = [&](auto&& is_wanted) {
      const auto next = std::ranges::find_if(plans, is_wanted);
      if (next != plans.end() && next->seconds < most) found.push_back(*next);
    };
    add([&](const Plan& plan) { return plan.source != best.source; });
    for (double before = best.seconds; found.size() < (is_short ? 4 : 3);) {
      const std::size_t tried = found.size();
      add([&](const Plan& plan) {
        return plan.source == best.source && plan.seconds > 1.01 * before;
      });
      if (found.size() == tried) break;
      before = found.back().seconds;
    }
    return found;
  }

  void run_on_mpi(const std::vector<float>& input, std::vector<float>& output) {
    const mpi::Mpi& mpi = mpi::get();
    mpi::Handle request = 0;
    mpi.check(mpi.call.Iallreduce(input.data(), output.data(), static_cast<int>(input.size()),
                                  *mpi.handle_of(kMeasuredType), *mpi.handle_of(Op::kSum),
                                  transport_.comm(), &request),
              "MPI_Iallreduce");
    mpi.check(calls_.wait(request), "MPI_Iallreduce");
  }

  // Returns the nanoseconds that it took in all.
  std::uint64_t measure_size(std::size_t bytes, const std::vector<Plan>& plans,
                             MeasuredSize& found) {
    const std::uint64_t begin = now_ns();
    std::vector<float> input(bytes / size_of(kMeasuredType)), output(input.size());
    const Call call{.in = {input.data()},
                    .out = {output.data()},
                    .count = input.size(),
                    .dtype = kMeasuredType};
    const auto way = [&](std::size_t number) {
      number == plans.size() ? run_on_mpi(input, output) : trials_.run(call, plans[number]);
    };
    const std::size_t ways = plans.size() + 1;
    const auto all_ways = [&] {
      for (std::size_t number = 0; number < ways; ++number) way(number);
    };
    all_ways();
    const std::uint64_t once = agreed(time_of(all_ways));
    // Short calls follow each other, as in a program: ranks that share cores behave differently
    // right after a barrier.
    const std::uint64_t calls =
        std::clamp<std::uint64_t>(ways * kSeries / (once + 1), 1, kMostInSeries);
    const auto series = [&](std::size_t number) {
      for (std::uint64_t call = 0; call < calls; ++call) way(number);
    };
    // The candidates take turns, so that other work of this machine slows all of them.
    std::vector<std::uint64_t> times;
    for (std::uint64_t turn = turns_within(ways * kPerFigure, calls * once); turn > 0; --turn) {
      for (std::size_t number = 0; number < ways; ++number) {
        const std::uint64_t took = time_together([&] { series(number); });
        times.push_back(std::max<std::uint64_t>(took / calls, 1));
      }
    }
    const std::vector<double> medians = by_turns(agreed(times), ways);
    found = {bytes, medians.back(), {}};
    for (std::size_t number = 0; number < plans.size(); ++number) {
      found.tried.push_back({plans[number].label, medians[number], plans[number].seconds});
    }
    return agreed(now_ns() - begin);
  }

  // The seconds of each candidate. The first gets its median. Each other one gets this median times
  // the median of its ratios to the first within turns.
  static std::vector<double> by_turns(const std::vector<std::uint64_t>& times, std::size_t ways) {
    std::vector<double> medians;
    for (std::size_t number = 0; number < ways; ++number) {
      std::vector<std::uint64_t> column;
      for (std::size_t i = 0; i < times.size(); i += ways) {
        column.push_back(number == 0 ? times[i] : 1'000'000 * times[i + number] / times[i]);
      }
      const auto middle = static_cast<double>(median(std::move(column)));
      medians.push_back(std::max(number == 0 ? 1e-9 * middle : 1e-6 * middle * medians[0], 1e-9));
    }
    return medians;
  }

  void measure_sizes() {
    std::uint64_t spent = 0;
    std::size_t done = 0;
    std::vector<MeasuredSize> found;
    for (const std::size_t bytes : kMeasuredBytes) {
      const std::vector<Plan> plans = worth_trying(bytes);
      const double once = expected_seconds(found, bytes, plans.front().seconds);
      const bool rough = done++ < kRough && once < kLongestRough;
      const auto ways = static_cast<double>(plans.size() + 1);
      const auto all = static_cast<std::uint64_t>(1e9 * ways * once * (kFewestTurns + 2));
      if (!rough && spent + all > kForSizes) continue;
      spent += measure_size(bytes, plans, found.emplace_back());
    }
    std::ranges::sort(found, {}, &MeasuredSize::bytes);
    figures_.sizes = std::move(found);
  }

  // What the slowest of the candidates may take, by the sizes already measured. A longer vector
  // takes no less time than a shorter one, and from 64 KiB on the time grows in proportion.
  static double expected_seconds(const std::vector<MeasuredSize>& found, std::size_t bytes,
                                 double predicted) {
    double once = predicted;
    for (const MeasuredSize& one : found) {
      if (one.bytes > bytes) continue;
      const bool is_long = one.bytes >= (64 << 10);
      const double times = static_cast<double>(bytes) / static_cast<double>(one.bytes);
      once = std::max(once, std::max(one.mpi, one.tried.front().seconds) * (is_long ? times : 1));
    }
    return once;
  }

  SetUpCalls& calls_;
  MpiTransport& transport_;
  const Place& place_;
  const Topology& topology_;
  const Trials& trials_;
  Figures figures_ = assumed_figures();
};

FiguresKey key_of(SetUpCalls& calls, const Topology& topology) {
  using Name = std::array<char, 64>;
  Name mine{};
  gethostname(mine.data(), mine.size() - 1);
  std::vector<Name> all(static_cast<std::size_t>(calls.size()));
  calls.allgather(&mine, sizeof mine, all.data());
  std::vector<std::string> names;
  for (const Name& name : all) names.emplace_back(name.data());
  std::string mpi = mpi::get().version();
  mpi = mpi.substr(0, mpi.find('\n'));
  return {std::move(mpi), hosts_text(names), layout_text(topology)};
}

// Gives all ranks the text of rank 0.
void share(std::string& text, SetUpCalls& calls) {
  std::uint64_t bytes = text.size();
  calls.bcast(&bytes, sizeof bytes);
  text.resize(bytes);
  if (bytes > 0) calls.bcast(text.data(), bytes);
}

// For rank 0: the figures of this process, so that a second communicator does not measure if no
// file can be written.
std::string& remembered(const FiguresKey& key) {
  static std::mutex mutex;
  static auto* texts = new std::map<std::string, std::string>;
  const std::lock_guard lock(mutex);
  return (*texts)[figures_file("", key)];
}

}  // namespace

Figures find_figures(SetUpCalls& calls, MpiTransport& transport, const Place& place,
                     const std::string& folder, const Trials& trials) {
  const FiguresKey key = key_of(calls, place.topology);
  std::string text;
  if (calls.rank() == 0) {
    text = remembered(key);
    if (text.empty() && !folder.empty()) text = read_figures(folder, key);
  }
  share(text, calls);
  if (text.empty()) {
    text = to_text({key, Measuring(calls, transport, place, trials).all()});
    if (calls.rank() == 0 && !folder.empty()) write_figures(folder, key, text);
    share(text, calls);
  }
  if (calls.rank() == 0) remembered(key) = text;
  return figures_from(text).figures;
}

}  // namespace gradred
