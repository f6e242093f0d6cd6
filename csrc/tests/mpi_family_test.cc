// Calls that the MPI carries out: blocking, started and persistent ones, their errors, and what is
// refused. The MPI is in memory. Ranks are threads, or processes where a communicator fails.
#include <climits>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/errors.h"
#include "calls/mpi_handles.h"
#include "collectives_in_memory.h"
#include "comm/communicator.h"
#include "families/mpi/family_mpi.h"
#include "families/mpi/mpi_operation.h"
#include "hooks.h"
#include "late_memory.h"
#include "node_ranks.h"

namespace gradred::testing {
namespace {

using Collectives = CollectivesInMemory;
using Fails = Collectives::Fails;

// How the MPI and the settings let an operation go on.
struct Way {
  const char* name;
  bool thread;  // the progress thread may advance it
  bool inside;  // the MPI's own functions may; then the ranks compare calls
};
constexpr Way kWays[] = {{"by calls", false, false},
                         {"inside the MPI", false, true},
                         {"by the thread", true, false},
                         {"by both", true, true}};

void install(int ranks, const Way& way) {
  Collectives::install(ranks);
  if (!way.inside) mpi::for_tests().call.Grequest_start_driven = nullptr;
  settings().progress_thread = way.thread;
  process_poisoned = false;
}

struct Rank {
  explicit Rank(const BoardBootstrap& ranks)
      : rank(ranks.rank()),
        size(ranks.size()),
        comm(std::make_shared<Communicator>(mpi::get().is.comm_world, rank, size)) {}

  void run(const Call& call) { mpi_family().run(comm->parts(), plan(), call, hook); }
  std::shared_ptr<StartedOperation> start(const Call& call) { return comm->start(call); }
  void wait(StartedOperation& operation) { wait_for(operation, hook); }
  // Until nothing uses the communicator but this object.
  void expect_release() {
    while (comm.use_count() > 1) {
      drive();
      hook.waiting();
    }
  }
  static Plan plan() { return {.source = &mpi_family(), .name = "mpi"}; }

  const int rank, size;
  const std::shared_ptr<Communicator> comm;
  Patience hook;
};

// Runs a test with an MPI of its own.
void on_ranks(Report& report, Ranks kind, int size, const Way& way, const std::string& name,
              const Body& body) {
  install(size, way);
  on_ranks(report, kind)(size, name + ", " + way.name, [&](BoardBootstrap& ranks) {
    Collectives::rank() = ranks.rank();
    body(ranks);
  });
}

// The same for a test that needs a communicator only.
template <void (*test)(Rank&)>
void alone(BoardBootstrap& ranks) {
  Rank rank(ranks);
  test(rank);
}

template <class Number>
constexpr DType kDType = std::is_same_v<Number, double> ? DType::kFloat64 : DType::kInt8;

double value(int rank, std::size_t at) { return 3 * rank + static_cast<double>(at % 7) - 2; }

// A call with its buffers, and the result that it must have.
template <class Number>
struct Made {
  static constexpr Number kUntouched = 99;

  Made(Kind kind, std::size_t count, const Rank& rank, bool in_place = false, Op op = Op::kSum)
      : at{rank.rank, rank.size, rank.size - 1}, op(op) {
    const std::size_t given = given_counts(kind, at) * count, got = got_counts(kind, at) * count;
    out.assign(std::max(given, got), kUntouched);
    in_place = in_place || kind == Kind::kBcast;
    const std::size_t first = in_place && kind == Kind::kAllgather ? place() * count : 0;
    std::vector<Number>& input = in_place ? out : in;
    input.resize(std::max(input.size(), first + given));
    for (std::size_t i = 0; i < given; ++i)
      input[first + i] = static_cast<Number>(value(at.rank, i));
    before = out;
    call = {.kind = kind, .out = {out.data()}, .count = count, .dtype = kDType<Number>, .op = op};
    if (!in_place) call.in = {in.data()};
    if (given_counts(kind, at) == 0) call.in = {};
    call.factor = 2;
    if (has_root(kind)) call.root = at.root;
  }
  std::size_t place() const { return static_cast<std::size_t>(at.rank); }

  // The element at this place of the result.
  double result(std::size_t i) const {
    const std::size_t count = call.count, own = place() * count + i;
    double sum = 0;
    switch (call.kind) {
      case Kind::kAllgather:
      case Kind::kGather:
        return value(static_cast<int>(i / count), i % count);
      case Kind::kBcast:
        return value(at.root, i);
      case Kind::kScatter:
        return value(at.root, own);
      case Kind::kReduceScatterBlock:
        for (int rank = 0; rank < at.size; ++rank) sum += value(rank, own);
        return sum;
      case Kind::kScan:
        for (int rank = 0; rank <= at.rank; ++rank) sum += value(rank, i);
        return sum;
      case Kind::kExscan:
        for (int rank = 0; rank < at.rank; ++rank) sum += value(rank, i);
        return sum;
      default:
        for (int rank = 0; rank < at.size; ++rank) sum += value(rank, i);
        if (op == Op::kAvg) sum /= at.size;
        return op == Op::kPremul ? 2 * sum : sum;
    }
  }
  void expect_result() const {
    const std::size_t got = got_counts(call.kind, at) * call.count;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double wanted = i < got ? result(i) : static_cast<double>(before[i]);
      if (i >= got && reduces(call.kind)) continue;  // input in place, which the MPI may change
      expect(static_cast<double>(out[i]) == static_cast<double>(static_cast<Number>(wanted)),
             std::string(name_of(call.kind)) + ": element " + std::to_string(i) + " is " +
                 std::to_string(out[i]) + ", not " + std::to_string(wanted));
    }
  }

  PlaceInCall at;
  Op op;
  std::vector<Number> in, out, before;
  Call call;
};

constexpr Kind kAllKinds[] = {Kind::kAllreduce, Kind::kReduceScatterBlock,
                              Kind::kAllgather, Kind::kBcast,
                              Kind::kScan,      Kind::kExscan,
                              Kind::kGather,    Kind::kScatter};

// Calls `use` for each kind of call on this rank, in place and not.
template <class Number>
void for_each_kind(Rank& rank, const std::function<void(Made<Number>&)>& use) {
  for (const Kind kind : kAllKinds) {
    for (const std::size_t count : {0, 1, 50}) {
      Made<Number> made(kind, count, rank);
      use(made);
      if (kind == Kind::kGather || kind == Kind::kScatter) continue;
      Made<Number> in_place(kind, count, rank, true);
      use(in_place);
    }
  }
  for (const Op op : {Op::kAvg, Op::kPremul}) {
    if (std::is_same_v<Number, std::int8_t>) continue;
    Made<Number> made(Kind::kAllreduce, 50, rank, false, op);
    use(made);
  }
}

// ---- results ------------------------------------------------------------------------------------

template <class Number>
void blocking_calls_give_results(Rank& rank) {
  for_each_kind<Number>(rank, [&](Made<Number>& made) {
    const std::vector<Number> input = made.in;
    rank.run(made.call);
    made.expect_result();
    expect(made.in == input, "the input stays as it is");
  });
  rank.expect_release();
  expect(!process_poisoned, "nothing has failed");
}

template <class Number>
void started_calls_give_results(Rank& rank) {
  for_each_kind<Number>(rank, [&](Made<Number>& made) {
    made.call.mpi_request = false;
    const auto operation = rank.start(made.call);
    rank.wait(*operation);
    made.expect_result();
    expect(!operation->holds_memory(), "the MPI has the buffers no more");
    expect(operation->used_transport() == UsedTransport::kMpi, "the MPI has carried it out");
  });
  rank.expect_release();
}

// Waits as a program does that knows the MPI's functions only. Returns their error code.
int wait_in_mpi(Rank& rank, mpi::Handle request) {
  int code = 0;
  for (int done = 0; done == 0 && code == 0;) {
    rank.hook.waiting();
    code = mpi::get().call.Test(&request, &done, nullptr);
  }
  expect(request == mpi::get().is.request_null, "the MPI has freed the request");
  return code;
}

void the_mpis_own_wait_ends_started_calls(Rank& rank) {
  for_each_kind<double>(rank, [&](Made<double>& made) {
    const auto operation = rank.start(made.call);
    if (operation->request() == mpi::get().is.request_null) {
      rank.wait(*operation);  // ended, or only gradred's functions end it
    } else {
      expect(wait_in_mpi(rank, operation->request()) == 0, "it ends well");
    }
    const bool all_of_it = !thread_may_drive() && !completes_inside_mpi() &&
                           made.call.op == Op::kSum && made.call.count > 0;
    expect(!all_of_it || operation->uses_mpi_request(), "the MPI's request stands for all of it");
    while (!operation->ended() && !operation->uses_mpi_request()) rank.hook.waiting();  // soon
    made.expect_result();
  });
  rank.expect_release();
}

// Waits as a program does that uses gradred's functions and knows the MPI's request.
void wait_with_request(Rank& rank, StartedOperation& operation) {
  GeneralizedRequest& request = operation.generalized_request();
  {
    const GeneralizedRequest::Held held(request);
    rank.wait(operation);
    if (request.take_back()) return;
  }
  if (operation.request() != mpi::get().is.request_null) {
    expect(wait_in_mpi(rank, operation.request()) == 0, "it has ended well");
  }
}

void persistent_calls_begin_anew(Rank& rank) {
  Made<double> made(Kind::kAllreduce, 50, rank);
  made.call.persistent = true;
  for (int turn = 0; turn < 3; ++turn) {
    made.out = made.before;
    made.call.out = {made.out.data()};
    const auto operation = rank.start(made.call);
    expect(!operation->uses_mpi_request(), "gradred looks after it");
    wait_with_request(rank, *operation);
    made.expect_result();
  }
  rank.expect_release();
}

// Each rank waits for the last one that it has started, or for the first one.
void operations_in_flight_end_in_any_order(Rank& rank) {
  std::vector<Made<double>> made;
  std::vector<std::shared_ptr<StartedOperation>> started;
  for (const Kind kind : kAllKinds) {
    made.emplace_back(kind, 20, rank);
    made.back().call.mpi_request = false;
  }
  for (Made<double>& one : made) started.push_back(rank.start(one.call));
  for (std::size_t i = 0; i < started.size(); ++i) {
    const std::size_t next = rank.rank % 2 == 0 ? i : started.size() - 1 - i;
    rank.wait(*started[next]);
    made[next].expect_result();
  }
  started.clear();
  rank.expect_release();
}

void nothing_is_in_flight_once_all_are_finished(Rank& rank) {
  Made<double> first(Kind::kAllreduce, 20, rank), second(Kind::kBcast, 20, rank);
  first.call.mpi_request = second.call.mpi_request = false;
  const auto one = rank.start(first.call), other = rank.start(second.call);
  rank.comm->on_mpi().finish(rank.hook);
  expect(one->ended() && other->ended(), "both have ended");
  first.expect_result();
  second.expect_result();
}

// The MPI adds from the highest rank to the lowest, and loses nothing of these.
void deterministic_sums_are_in_the_order_of_ranks(Rank& rank) {
  const double inputs[] = {1, 1e17, -1e17};
  const std::size_t place = static_cast<std::size_t>(rank.rank);
  double in[2] = {inputs[place], 7}, out[2] = {};
  Call call{.in = {in}, .out = {out}, .count = 2, .dtype = DType::kFloat64, .mpi_request = false};
  rank.wait(*rank.start(call));
  const double in_order = (inputs[0] + inputs[1]) + inputs[2];
  expect(out[0] == in_order && out[1] == 21, "the order of ranks");
  call.kind = Kind::kScan;
  rank.wait(*rank.start(call));
  expect(out[0] == (rank.rank == 2 ? in_order : rank.rank == 1 ? 1e17 : 1), "the same in a scan");
  rank.expect_release();
}

// ---- errors -------------------------------------------------------------------------------------

constexpr int kCode = 7;
constexpr int kAllreduce = static_cast<int>(Kind::kAllreduce);

void an_error_at_the_call_has_the_mpis_text(Rank& rank) {
  Made<double> made(Kind::kAllreduce, 4, rank);
  Collectives::fail_next(kAllreduce, kCode, Fails::kAtOnce);
  const std::string error = error_of<TransportError>([&] { rank.run(made.call); });
  expect(
      contains(error, "MPI_Iallreduce failed") && contains(error, Collectives::error_text(kCode)),
      error);
  Collectives::fail_next(kAllreduce, kCode, Fails::kAtOnce);
  const std::string again = error_of<TransportError>([&] { rank.start(made.call); });
  expect(contains(again, Collectives::error_text(kCode)), again);
}

void an_error_at_the_end_has_the_mpis_text(Rank& rank) {
  Made<double> made(Kind::kAllreduce, 4, rank);
  made.call.mpi_request = false;
  if (rank.rank == 0) Collectives::fail_next(kAllreduce, kCode, Fails::kLater);
  const auto operation = rank.start(made.call);
  if (rank.rank != 0) {
    rank.wait(*operation);
    return made.expect_result();
  }
  const std::string error = error_of<TransportError>([&] { rank.wait(*operation); });
  expect(contains(error, Collectives::error_text(kCode)), error);
  expect(process_poisoned, "the peers may wait for this process in MPI_Finalize");
  const std::string later = error_of<TransportError>([&] { rank.start(made.call); });
  expect(contains(later, Collectives::error_text(kCode)), "of another call: " + later);
}

void the_mpis_own_wait_ends_with_an_error(Rank& rank) {
  Made<double> made(Kind::kAllreduce, 4, rank);
  Collectives::fail_next(kAllreduce, kCode, Fails::kLater);
  const auto operation = rank.start(made.call);
  expect(wait_in_mpi(rank, operation->request()) == mpi::get().is.err_other, "an error");
  expect(operation->failed(), "of the operation");
}

// The MPI never ends such a call, and may still read and write the buffers.
void a_disagreement_names_both_calls_on_all_ranks(Rank& rank) {
  const std::size_t count = rank.rank == 0 ? 4 : 5;
  Made<double> made(Kind::kAllreduce, count, rank);
  const auto operation = rank.start(made.call);
  const std::string error = error_of<UsageError>([&] { rank.wait(*operation); });
  expect(contains(error, "4 float64") && contains(error, "5 float64"), error);
  expect(operation->holds_memory() && process_poisoned, "the MPI has the buffers");
}

// The ranks differ in what the MPI does not know, so it ends the call.
void after_a_disagreement_that_the_mpi_ends_others_follow(Rank& rank) {
  Made<double> made(Kind::kAllreduce, 4, rank);
  made.call.layout = rank.rank == 0 ? 1 : 2;
  const auto operation = rank.start(made.call);
  const std::string error = error_of<UsageError>([&] { rank.wait(*operation); });
  expect(contains(error, "another"), error);
  expect(!operation->holds_memory() && !process_poisoned, "nothing is left");
  Made<double> next(Kind::kAllreduce, 4, rank);
  rank.wait(*rank.start(next.call));
  next.expect_result();
}

void ranks_that_differ_in_the_order_of_sums_learn_it(BoardBootstrap& ranks) {
  settings().deterministic = ranks.rank() == 1;
  Rank rank(ranks);
  Made<double> made(Kind::kAllreduce, 4, rank);
  const auto operation = rank.start(made.call);
  const std::string error = error_of<UsageError>([&] { rank.wait(*operation); });
  expect(
      contains(error, "GRADRED_DETERMINISTIC is " + std::string(ranks.rank() == 1 ? "on" : "off")),
      error);
  expect(contains(error, "on rank 0") && contains(error, "on rank 1"), error);
}

// The MPI may still read and write what it was given before.
void memory_of_a_call_that_the_mpi_refuses_stays(BoardBootstrap& ranks) {
  Rank rank(ranks);
  Made<double> made(Kind::kAllreduce, 4, rank);
  const bool fails = ranks.rank() == 0;
  if (fails) Collectives::fail_next(kAllreduce, kCode, Fails::kAtOnce);
  std::shared_ptr<StartedOperation> operation;
  if (!fails) operation = rank.start(made.call);
  if (fails) error_of<TransportError>([&] { rank.start(made.call); });
  const bool is_known = process_poisoned;
  ranks.barrier();
  // Under the address sanitizer the memory must be there.
  const std::size_t left = fails ? Collectives::end_all() : 0;
  ranks.barrier();
  expect(is_known == (fails && completes_inside_mpi()), "whether a comparison is in flight");
  expect(left == 0, "the MPI has ended the comparison");
}

void a_call_that_is_too_long_leaves_nothing_to_the_mpi(Rank& rank) {
  double data[1] = {};
  for (const Kind kind : kAllKinds) {
    if (!has_blocks(kind)) continue;
    const Call call{.kind = kind, .out = {data}, .count = std::size_t{1} << 31};
    const std::string error = error_of<UsageError>([&] { rank.start(call); });
    expect(contains(error, "make a blocking call"), error);
  }
  expect(Collectives::calls() == 0 && !process_poisoned, "it has got nothing");
}

// Rank 1 comes after rank 0 has left. The MPI still takes rank 0's input, and writes its result.
void memory_of_a_call_that_is_given_up_stays(BoardBootstrap& ranks) {
  settings().deterministic = true;
  Rank rank(ranks);
  Made<double> made(Kind::kAllreduce, 500, rank, false, Op::kPremul);
  made.call.mpi_request = false;
  if (ranks.rank() == 0) {
    auto operation = rank.start(made.call);
    Interrupts hook;
    try {
      wait_for(*operation, hook);
      throw Failed("the wait goes on");
    } catch (const Interrupted&) {
    }
    expect(operation->ended() && operation->failed() && operation->holds_memory(), "given up");
    operation.reset();
  }
  ranks.barrier();
  if (ranks.rank() == 1) {
    rank.wait(*rank.start(made.call));
    made.expect_result();
  }
  ranks.barrier();
  // Under the address sanitizer the memory must be there.
  expect(Collectives::end_all() == 0, "the MPI has ended it");
  ranks.barrier();
}

// ---- what is refused ----------------------------------------------------------------------------

void the_mpi_gets_no_more_than_it_can_count(Rank& rank) {
  constexpr std::size_t kMany = std::size_t{1} << 31;
  double data[1] = {};
  const Call sum{.out = {data}, .count = kMany, .dtype = DType::kFloat64};
  mpi_family().check(rank.comm->parts(), sum);  // it is cut
  for (const Kind kind : kAllKinds) {
    if (reduces(kind) && !has_blocks(kind)) continue;
    const Call most{.kind = kind, .out = {data}, .count = INT_MAX};
    mpi_family().check(rank.comm->parts(), most);
    const Call more{.kind = kind, .out = {data}, .count = kMany};
    const std::string error =
        error_of<UsageError>([&] { mpi_family().check(rank.comm->parts(), more); });
    expect(contains(error, "2 GiB"), error);
  }
}

// Where the parts of a vector begin that the MPI has got, and their counts.
std::vector<std::pair<const void*, std::size_t>> parts_given;
int take_part(const void* data, int count, mpi::Handle* request) {
  parts_given.emplace_back(data, count);
  *request = mpi::get().is.request_null;
  return 0;
}

void long_vectors_go_in_parts_that_the_mpi_can_count(Rank& rank) {
  mpi::Functions& call = mpi::for_tests().call;
  call.Ibcast = [](void* data, int count, mpi::Handle, int, mpi::Handle, mpi::Handle* request) {
    return take_part(data, count, request);
  };
  call.Ireductions[0] = [](const void*, void* data, int count, mpi::Handle, mpi::Handle,
                           mpi::Handle,
                           mpi::Handle* request) { return take_part(data, count, request); };
  constexpr std::size_t kMany = (std::size_t{5} << 30) + 8;
  auto* const data = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);  // nobody reads there
  for (const Kind kind : {Kind::kAllreduce, Kind::kBcast}) {
    parts_given.clear();
    const Call sum{.kind = kind, .out = {data}, .count = kMany, .dtype = DType::kInt32};
    rank.wait(*mpi_operation(rank.comm->parts(), sum));
    const std::size_t width = kind == Kind::kBcast ? 1 : 4;  // a broadcast moves bytes
    std::size_t at = 0;
    for (const auto& [begin, count] : parts_given) {
      expect(begin == data + at * width, "the next part");
      at += count;
    }
    expect(at * width == kMany * 4, std::string(name_of(kind)) + ": the whole vector");
  }
}

void the_mpi_gets_no_schedule_of_the_program(Rank& rank) {
  double data[1] = {};
  const auto schedule = std::make_shared<const Schedule>();
  const Call call{.out = {data}, .count = 1, .dtype = DType::kFloat64, .schedule = schedule};
  const std::string error = error_of<UsageError>([&] { mpi_operation(rank.comm->parts(), call); });
  expect(contains(error, "no blocking call"), error);
  Place place;
  expect(mpi_family().why_not({.own = schedule.get()}, place).has_value(), "nor a blocking one");
  expect(!mpi_family().why_not({}, place).has_value(), "but others");
  place.why_no_mpi = "it must not";
  expect(mpi_family().why_not({}, place) == "it must not", "unless it may not");
}

void the_mpi_gets_device_memory_only_if_it_says_so(Rank&) {
  LateMemory device;
  const Call sum{.out = {nullptr, Memory(device)}, .count = 1, .dtype = DType::kFloat64};
  Call mean = sum, least = sum, blocks = sum;
  mean.op = Op::kAvg;
  least.op = Op::kMin;  // gradred's own, which reads host memory
  blocks.kind = Kind::kReduceScatterBlock;
  const auto reads = [](const Call& call) {
    return mpi_family().access(call) == ArrayAccess::kDirect;
  };
  mpi::for_tests().call.Query_cuda_support = nullptr;
  expect(!reads(sum), "it says nothing");
  mpi::for_tests().call.Query_cuda_support = [] { return 0; };
  expect(!reads(sum), "it denies");
  mpi::for_tests().call.Query_cuda_support = [] { return 1; };
  expect(reads(sum), "it agrees");
  expect(!reads(mean) && !reads(least) && !reads(blocks), "what gradred has to work on");
  settings().mpi_reads_devices = false;
  expect(!reads(sum), "the settings deny");
  settings().mpi_reads_devices.reset();
}

// 8-bit integers are added by gradred's function; the MPI only moves them.
void sums_of_the_mpi_wrap_as_gradreds_do(Rank& rank) {
  std::int8_t in[3] = {100, -100, 1}, out[3] = {};
  rank.run({.in = {in}, .out = {out}, .count = 3, .dtype = DType::kInt8});
  const int sum = 100 * rank.size;
  expect(out[0] == static_cast<std::int8_t>(sum) && out[1] == static_cast<std::int8_t>(-sum) &&
             out[2] == rank.size,
         "they wrap");
  expect(!mpi_handles(Op::kSum, DType::kInt8), "MPIs limit them to the range of the type");
}

void run_where_a_communicator_fails(Report& report) {
  const auto run = [&](const Way& way, int size, const std::string& name, const Body& body) {
    on_ranks(report, Ranks::kProcesses, size, way, name, body);
  };
  for (const Way& way : {kWays[0], kWays[1]}) {
    run(way, 2, "an_error_at_the_call_has_the_mpis_text",
        alone<an_error_at_the_call_has_the_mpis_text>);
    for (const int size : {2, 3}) {
      run(way, size, "an_error_at_the_end_has_the_mpis_text",
          alone<an_error_at_the_end_has_the_mpis_text>);
    }
  }
  run(kWays[1], 2, "the_mpis_own_wait_ends_with_an_error",
      alone<the_mpis_own_wait_ends_with_an_error>);
  for (const int size : {2, 3}) {
    run(kWays[1], size, "a_disagreement_names_both_calls_on_all_ranks",
        alone<a_disagreement_names_both_calls_on_all_ranks>);
    run(kWays[1], size, "after_a_disagreement_that_the_mpi_ends_others_follow",
        alone<after_a_disagreement_that_the_mpi_ends_others_follow>);
  }
  run(kWays[1], 2, "ranks_that_differ_in_the_order_of_sums_learn_it",
      ranks_that_differ_in_the_order_of_sums_learn_it);
  for (const Way& way : {kWays[0], kWays[1]}) {
    run(way, 2, "memory_of_a_call_that_the_mpi_refuses_stays",
        memory_of_a_call_that_the_mpi_refuses_stays);
  }
  run(kWays[1], 2, "a_call_that_is_too_long_leaves_nothing_to_the_mpi",
      alone<a_call_that_is_too_long_leaves_nothing_to_the_mpi>);
  run(kWays[1], 2, "memory_of_a_call_that_is_given_up_stays",
      memory_of_a_call_that_is_given_up_stays);
}

void run_where_none_fails(Report& report) {
  const auto run = [&](const Way& way, int size, const std::string& name, const Body& body) {
    on_ranks(report, Ranks::kThreads, size, way, name, body);
  };
  run(kWays[0], 1, "the_mpi_gets_no_more_than_it_can_count",
      alone<the_mpi_gets_no_more_than_it_can_count>);
  run(kWays[0], 1, "long_vectors_go_in_parts_that_the_mpi_can_count",
      alone<long_vectors_go_in_parts_that_the_mpi_can_count>);
  run(kWays[0], 1, "the_mpi_gets_no_schedule_of_the_program",
      alone<the_mpi_gets_no_schedule_of_the_program>);
  run(kWays[0], 1, "the_mpi_gets_device_memory_only_if_it_says_so",
      alone<the_mpi_gets_device_memory_only_if_it_says_so>);
  for (const Way& way : kWays) {
    for (const int size : {1, 2, 3}) {
      run(way, size, "blocking_calls_give_results of float64",
          alone<blocking_calls_give_results<double>>);
      run(way, size, "blocking_calls_give_results of int8",
          alone<blocking_calls_give_results<std::int8_t>>);
      run(way, size, "sums_of_the_mpi_wrap_as_gradreds_do",
          alone<sums_of_the_mpi_wrap_as_gradreds_do>);
    }
    for (const int size : {2, 3}) {  // one rank needs no MPI
      run(way, size, "started_calls_give_results", alone<started_calls_give_results<double>>);
      run(way, size, "the_mpis_own_wait_ends_started_calls",
          alone<the_mpis_own_wait_ends_started_calls>);
      run(way, size, "persistent_calls_begin_anew", alone<persistent_calls_begin_anew>);
      run(way, size, "operations_in_flight_end_in_any_order",
          alone<operations_in_flight_end_in_any_order>);
      run(way, size, "nothing_is_in_flight_once_all_are_finished",
          alone<nothing_is_in_flight_once_all_are_finished>);
    }
    settings().deterministic = true;
    run(way, 3, "deterministic_sums_are_in_the_order_of_ranks",
        alone<deterministic_sums_are_in_the_order_of_ranks>);
    settings().deterministic = false;
  }
}

// Processes come first: they are forked while this process has one thread.
int run_all(const std::string& part) {
  Report report(part);
  run_where_a_communicator_fails(report);
  run_where_none_fails(report);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
