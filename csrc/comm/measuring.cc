#include "comm/measuring.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/types.h"
#include "comm/families.h"
#include "comm/scheduled.h"
#include "mpi/mpi.h"
#include "plan/selector.h"
#include "reduce/reduce.h"

namespace gradred {
namespace {

constexpr std::size_t kBriefBytes = 8;
constexpr std::size_t kLengthyBytes = std::size_t{256} << 10;
constexpr int kFurtherMessages = 4;
// Nanoseconds: for one figure, and for all allreduces together.
constexpr std::uint64_t kPerFigure = 8'000'000, kForSizes = 250'000'000;
constexpr std::uint64_t kFewestTurns = 5, kMostTurns = 25;  // turns
// In this order, as far as there is time: first what gives a rough picture.
constexpr std::array<std::size_t, 11> kMeasuredBytes = {
    8, 64 << 10, 4 << 10, 512 << 10, 512, 16 << 10, 128 << 10, 2 << 20, 32 << 10, 8 << 10, 8 << 20};
constexpr DType kMeasuredType = DType::kFloat32;

double seconds(std::uint64_t ns) { return 1e-9 * static_cast<double>(ns); }

// A schedule on a vector of zeros, again and again.
class Trial {
 public:
  Trial(const Schedule& schedule, std::size_t bytes, std::size_t slices, MpiTransport& transport)
      : tag_(static_cast<std::uint32_t>(transport.tags().tag(0))),
        work_(bytes / size_of(kMeasuredType)) {
    RunnerKey key;
    key.count = work_.size();
    key.slices = slices;
    key.dtype = kMeasuredType;
    runner_ = make_runner(std::move(key), std::make_shared<const Schedule>(schedule), transport);
  }

  void start() {
    const Partition parts{work_.size(), runner_->slices.size()};
    const Signature signature =
        make_signature(Kind::kAllreduce, Op::kSum, kMeasuredType, work_.size());
    for (std::size_t i = 0; i < runner_->slices.size(); ++i) {
      runner_->slices[i]->start(work_.data() + parts.begin(i), nullptr,
                                tag_ + static_cast<std::uint32_t>(i), signature);
    }
  }
  bool advance() {
    bool complete = true;
    for (const auto& slice : runner_->slices) {
      if (slice->active()) complete &= slice->advance();
    }
    return complete;
  }

 private:
  std::uint32_t tag_;
  std::vector<float> work_;
  std::unique_ptr<Runner> runner_;
};

class Measuring {
 public:
  Measuring(SetUpCalls& calls, MpiTransport& transport, const Topology& topology)
      : calls_(calls), transport_(transport), topology_(topology) {}

  Figures all() {
    measure_links();
    measure_core();
    calls_.bcast(&figures_.model, sizeof figures_.model);
    Trial agreement(schedule("recursive_doubling", {}), 0, 1, transport_);
    figures_.announcement = seconds(agreed_time([&] { run(agreement); }, kPerFigure));
    measure_sizes();
    figures_.day = today();
    return figures_;
  }

 private:
  // The longest time of any rank.
  std::uint64_t agreed(std::uint64_t mine) {
    std::vector<std::uint64_t> all(static_cast<std::size_t>(calls_.size()));
    calls_.allgather(&mine, sizeof mine, all.data());
    return *std::ranges::max_element(all);
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

  // The median over some turns, of the slowest rank.
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

  Schedule schedule(std::string_view algorithm, const Parameters& parameters) const {
    return make_schedule(Collective::kAllreduce, algorithm, calls_.rank(), calls_.size(),
                         parameters);
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

  // -1: none.
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
    Trial trial(schedule, bytes, 1, transport_);
    return agreed_time([&] { run(trial); }, kPerFigure);
  }

  // The bytes of all `pairs` that share the link.
  Link link(int partner, std::size_t pairs) {
    const std::uint64_t brief = exchange_time(partner, kBriefBytes);
    const std::uint64_t lengthy = std::max(brief, exchange_time(partner, kLengthyBytes));
    const auto bytes = static_cast<double>(pairs * (kLengthyBytes - kBriefBytes));
    return {seconds(brief), std::max(seconds(lengthy - brief) / bytes, 1e-13)};
  }

  void measure_links() {
    CostModel& model = figures_.model;
    const int across = partner_across();
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

  // ---- allreduces: the MPI's and gradred's in turn ---------------------------------------------

  Plan best(std::size_t bytes) const {
    Place place{.size = calls_.size(), .topology = topology_, .why_no_memory = "several hosts"};
    place.costs = std::make_shared<Costs>(topology_, figures_);
    return choose(plan_families(), {.bytes = bytes, .most_slices = transport_.tags().most_slices()},
                  place);
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
  std::uint64_t measure_size(std::size_t bytes, const Plan& plan, MeasuredSize& found) {
    const std::uint64_t begin = now_ns();
    std::vector<float> input(bytes / size_of(kMeasuredType)), output(input.size());
    Trial trial(schedule(plan.name, plan.parameters), bytes, plan.slices, transport_);
    const auto by_mpi = [&] { run_on_mpi(input, output); };
    const auto by_schedule = [&] { run(trial); };
    by_mpi(), by_schedule();
    const std::uint64_t both = agreed(time_of(by_mpi) + time_of(by_schedule));
    std::vector<std::uint64_t> mpi, own;
    for (std::uint64_t turn = turns_within(2 * kPerFigure, both); turn > 0; --turn) {
      mpi.push_back(time_of(by_mpi));
      own.push_back(time_of(by_schedule));
    }
    found = {bytes, seconds(agreed(median(std::move(mpi)))),
             seconds(agreed(median(std::move(own)))), plan.seconds};
    return agreed(now_ns() - begin);
  }

  void measure_sizes() {
    std::uint64_t spent = 0;
    std::vector<MeasuredSize> found;
    for (const std::size_t bytes : kMeasuredBytes) {
      const Plan plan = best(bytes);
      const std::uint64_t expected = expected_ns(found, bytes, plan.seconds);
      if (!found.empty() && spent + expected > kForSizes) continue;
      spent += measure_size(bytes, plan, found.emplace_back());
    }
    std::ranges::sort(found, {}, &MeasuredSize::bytes);
    figures_.sizes = std::move(found);
  }

  // To measure this size, from those already measured: time does not shrink with the length.
  static std::uint64_t expected_ns(const std::vector<MeasuredSize>& found, std::size_t bytes,
                                   double predicted) {
    double once = 2 * predicted;
    for (const MeasuredSize& one : found) {
      const double longer = static_cast<double>(bytes) / static_cast<double>(one.bytes);
      const bool large = one.bytes >= (64 << 10) && longer > 1;
      if (longer >= 1) once = std::max(once, (one.mpi + one.schedule) * (large ? longer : 1));
    }
    return static_cast<std::uint64_t>(1e9 * once * static_cast<double>(kFewestTurns + 2));
  }

  static std::string today() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    std::array<char, 16> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
    return text.data();
  }

  SetUpCalls& calls_;
  MpiTransport& transport_;
  const Topology& topology_;
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

// Rank 0's.
void share(std::string& text, SetUpCalls& calls) {
  std::uint64_t bytes = text.size();
  calls.bcast(&bytes, sizeof bytes);
  text.resize(bytes);
  if (bytes > 0) calls.bcast(text.data(), bytes);
}

// Of this process, as rank 0: where no file can be kept no second communicator measures.
std::string& remembered(const FiguresKey& key) {
  static std::mutex mutex;
  static auto* texts = new std::map<std::string, std::string>;
  const std::lock_guard lock(mutex);
  return (*texts)[figures_file("", key)];
}

}  // namespace

Figures find_figures(SetUpCalls& calls, MpiTransport& transport, const Topology& topology,
                     const std::string& folder) {
  const FiguresKey key = key_of(calls, topology);
  std::string text;
  if (calls.rank() == 0) {
    text = remembered(key);
    if (text.empty() && !folder.empty()) text = read_figures(folder, key);
  }
  share(text, calls);
  if (text.empty()) {
    text = to_text({key, Measuring(calls, transport, topology).all()});
    if (calls.rank() == 0 && !folder.empty()) write_figures(folder, key, text);
    share(text, calls);
  }
  if (calls.rank() == 0) remembered(key) = text;
  return figures_from(text).figures;
}

}  // namespace gradred
