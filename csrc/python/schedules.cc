// Schedules in Python: Python code can read and construct them, C++ verifies and costs them.
#include "python/schedules.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/errors.h"
#include "python/gil.h"
#include "reduce/wire.h"
#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/cost.h"
#include "schedule/leaf_schedule.h"
#include "schedule/validate.h"
#include "schedule/verify.h"

namespace gradred {
namespace {

namespace py = pybind11;

constexpr std::array<std::string_view, 4> kStepKinds = {"send", "recv", "reduce", "copy"};
constexpr std::array<std::string_view, 4> kBuffers = {"work", "scratch", "input", "coded"};

std::string_view kind_of(const Step& step) {
  return kStepKinds[static_cast<std::size_t>(step.kind)];
}
std::string_view buffer_of(const Span& span) {
  return kBuffers[static_cast<std::size_t>(span.buffer)];
}

// Sets the size of the scratch buffer, and whether the schedule reads an input buffer.
void note_buffers(Schedule& schedule) {
  std::uint64_t slots = 0;
  const auto include = [&](const Span& span) {
    if (span.buffer == BufferId::kInput) schedule.in_place = false;
    if (span.buffer == BufferId::kScratch) {
      slots = std::max(slots, std::uint64_t{span.slot} + span.chunks);
    }
  };
  for (const Round& round : schedule.rounds) {
    for (const Step& step : round) {
      if (reads_source(step.kind)) include(step.source);
      if (reads_operand(step.kind)) include(step.operand);
      if (writes_target(step.kind)) include(step.target);
    }
  }
  if (slots > UINT32_MAX) throw UsageError("the scratch slots do not fit 32 bits");
  schedule.scratch_slots = static_cast<std::uint32_t>(slots);
}

py::tuple tuple_of(const Rounds& rounds, std::size_t begin, std::size_t count, py::ssize_t by) {
  py::tuple result(count);
  for (std::size_t i = 0; i < count; ++i, begin += static_cast<std::size_t>(by)) {
    result[i] = py::tuple(py::cast(rounds[begin]));
  }
  return result;
}

py::tuple tuple_of(const Rounds& rounds) { return tuple_of(rounds, 0, rounds.size(), 1); }

// Iterator for Python's for loops. It makes one round at a time.
class TupleIterator {
 public:
  explicit TupleIterator(Rounds::Iterator at) : at_(at) {}
  py::tuple operator*() const { return py::tuple(py::cast(*at_)); }
  TupleIterator& operator++() {
    ++at_;
    return *this;
  }
  bool operator==(const TupleIterator&) const = default;

 private:
  Rounds::Iterator at_;
};

// Accepts any iterable of iterables of steps, so also a generator.
std::vector<Round> rounds_from(const py::iterable& rounds) {
  std::vector<Round> result;
  for (const py::handle& round : rounds) {
    Round steps;
    if (!py::isinstance<py::iterable>(round)) throw py::type_error("a round is a list of steps");
    for (const py::handle& step : round) {
      if (!py::isinstance<Step>(step)) {
        throw py::type_error("a step is what send, recv, reduce or copy makes, not " +
                             py::repr(step).cast<std::string>());
      }
      steps.push_back(step.cast<Step>());
    }
    result.push_back(std::move(steps));
  }
  return result;
}

Schedule schedule_from(const py::iterable& rounds, int rank, int size, std::uint32_t chunks,
                       const std::string& collective, int root, const std::string& name,
                       std::vector<int> leaves) {
  Schedule schedule;
  schedule.name = name;
  schedule.collective = collective_named(collective);
  schedule.rank = rank;
  schedule.size = size;
  schedule.root = root;
  schedule.chunks = chunks;
  schedule.rounds = rounds_from(rounds);
  note_buffers(schedule);
  schedule.leaves = std::move(leaves);
  if (!schedule.leaves.empty()) schedule.in_place = false;
  return schedule;
}

// What a schedule is, for its hash: plain numbers, with a kind, a peer and three spans per step.
py::tuple state_of(const Schedule& schedule) {
  py::list rounds;
  for (const Round& round : schedule.rounds) {
    py::list steps;
    for (const Step& s : round) {
      py::tuple flat = py::make_tuple(static_cast<int>(s.kind), s.peer);
      for (const Span& span : {s.source, s.target, s.operand}) {
        flat = flat +
               py::make_tuple(static_cast<int>(span.buffer), span.first, span.chunks, span.slot);
      }
      steps.append(flat);
    }
    rounds.append(py::tuple(steps));
  }
  return py::make_tuple(schedule.name, static_cast<int>(schedule.collective), schedule.rank,
                        schedule.size, schedule.root, schedule.chunks, schedule.scratch_slots,
                        static_cast<int>(schedule.wire), schedule.coded_slots, schedule.in_place,
                        py::tuple(py::cast(schedule.leaves)), py::tuple(rounds));
}

bool takes(const Algorithm& algorithm, std::string_view parameter) {
  const std::string list = " " + std::string(algorithm.parameters) + " ";
  return list.find(" " + std::string(parameter) + " ") != std::string::npos;
}

template <class Type>
void assign(Type& parameter, const std::string& name, const py::handle& value) {
  try {
    parameter = value.cast<Type>();
  } catch (const py::cast_error&) {
    throw UsageError(name + "=" + py::repr(value).cast<std::string>() + ": give " +
                     (std::is_same_v<Type, int>           ? "a small whole number"
                      : std::is_same_v<Type, std::string> ? "a name"
                                                          : "a list of numbers"));
  }
}

}  // namespace

Parameters parameters_from(const Algorithm& algorithm, const py::dict& given) {
  Parameters parameters;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (!takes(algorithm, name)) {
      throw UsageError(std::string(algorithm.name) + " takes no parameter '" + name +
                       "'; it takes " +
                       (algorithm.parameters.empty() ? "none" : std::string(algorithm.parameters)));
    }
    if (name == "root") assign(parameters.root, name, value);
    if (name == "k") assign(parameters.k, name, value);
    if (name == "local") assign(parameters.local, name, value);
    if (name == "groups") assign(parameters.groups, name, value);
    if (name == "leaders") assign(parameters.leaders, name, value);
    if (name == "inside") assign(parameters.inside, name, value);
    if (name == "across") assign(parameters.across, name, value);
    if (name == "wire") {
      std::string wire;
      assign(wire, name, value);
      parameters.wire = wire_named(wire);
    }
  }
  return parameters;
}

namespace {

Schedule make(const std::string& collective, const std::string& name, int rank, int size,
              const py::dict& given) {
  const Kind kind = collective_named(collective);
  return make_schedule(kind, name, rank, size, parameters_from(find_algorithm(kind, name), given));
}

// Without `host_of`, all ranks are on one host.
Topology topology_of(std::vector<int> host_of, int size) {
  if (host_of.empty()) host_of.resize(static_cast<std::size_t>(size));
  if (host_of.size() != static_cast<std::size_t>(size)) {
    throw UsageError("hosts of " + std::to_string(host_of.size()) + " ranks for a schedule of " +
                     std::to_string(size) + ": give the number of the host of each rank");
  }
  return Topology::of(std::move(host_of));
}

Cost cost_of(const std::vector<Schedule>& schedules, std::vector<int> host_of) {
  if (schedules.empty()) return {};
  return cost(schedules, topology_of(std::move(host_of), schedules.front().size));
}

Cost cost_named(const std::string& collective, const std::string& name, int size,
                const py::dict& given, std::vector<int> host_of) {
  const Kind kind = collective_named(collective);
  const Parameters parameters = parameters_from(find_algorithm(kind, name), given);
  return cost(kind, name, parameters, topology_of(std::move(host_of), size));
}

// The registered algorithms, one dictionary each.
py::list table() {
  py::list rows;
  for (const Algorithm& algorithm : algorithms()) {
    py::dict row;
    row["name"] = algorithm.name;
    row["collective"] = schedules_name(algorithm.collective);
    row["parameters"] = py::str(algorithm.parameters).attr("split")();
    row["restriction"] = algorithm.restriction;
    row["about"] = algorithm.about;
    row["cost"] = algorithm.cost;
    row["paper"] = algorithm.paper;
    row["one_order"] = algorithm.one_order;
    rows.append(row);
  }
  return rows;
}

std::string text_of(const Span& span) {
  const std::string chunks =
      std::to_string(span.first) + (span.chunks == 1 ? "" : ", " + std::to_string(span.chunks));
  if (span.buffer == BufferId::kWork) return "work(" + chunks + ")";
  if (span.buffer == BufferId::kInput) {
    return "input_(" + chunks + (span.slot == 0 ? "" : ", vector=" + std::to_string(span.slot)) +
           ")";
  }
  return std::string(buffer_of(span)) + "(" + std::to_string(span.slot) + ", " + chunks + ")";
}

std::string text_of(const Step& step) {
  std::string ends = is_message(step.kind) ? std::to_string(step.peer) : text_of(step.source);
  ends += ", " + text_of(step.kind == StepKind::kSend ? step.source : step.target);
  if (reads_operand(step.kind) && step.operand != step.target) {
    ends += ", operand=" + text_of(step.operand);
  }
  return std::string(kind_of(step)) + "(" + ends + ")";
}

std::string text_of(const Schedule& schedule) {
  return "<Schedule " + schedule.name + ": " + std::string(schedules_name(schedule.collective)) +
         ", rank " + std::to_string(schedule.rank) + " of " + std::to_string(schedule.size) + ", " +
         std::to_string(schedule.rounds.size()) + " rounds" +
         (schedule.in_place ? "" : " from an input buffer") + ">";
}

// Links inside hosts default to the figures of those between hosts.
double seconds_of(const Cost& cost, std::size_t bytes, double alpha, double beta, double gamma,
                  double gap, double delta, std::optional<double> alpha_inside,
                  std::optional<double> beta_inside, double far, std::size_t slices) {
  const CostModel model{.inside = {alpha_inside.value_or(alpha), beta_inside.value_or(beta)},
                        .across = {alpha, beta},
                        .gap = gap,
                        .gamma = gamma,
                        .delta = delta,
                        .far = far};
  return cost.seconds(bytes, model, slices);
}

// A span of a step, or None if steps of this kind do not have it.
py::object end_of(bool there, const Span& span) {
  return there ? py::cast(span) : py::object(py::none());
}

void bind_steps(py::module_& m) {
  py::class_<Span>(m, "Span", "A run of chunks, at its place in the vector or in scratch slots.")
      .def_property_readonly("buffer", buffer_of)
      .def_readonly("first", &Span::first)
      .def_readonly("chunks", &Span::chunks)
      .def_readonly("slot", &Span::slot)
      .def(
          "__eq__", [](const Span& a, const Span& b) { return a == b; }, py::is_operator())
      .def("__hash__", [](const Span& span) { return py::hash(py::str(text_of(span))); })
      .def("__repr__", [](const Span& span) { return text_of(span); });
  py::class_<Step>(m, "Step", "One thing that a rank does in a round: send, recv, reduce or copy.")
      .def_property_readonly("kind", kind_of)
      .def_property_readonly("peer",
                             [](const Step& step) -> py::object {
                               if (!is_message(step.kind)) return py::none();
                               return py::int_(step.peer);
                             })
      .def_property_readonly("source",
                             [](const Step& s) { return end_of(reads_source(s.kind), s.source); })
      .def_property_readonly("target",
                             [](const Step& s) { return end_of(writes_target(s.kind), s.target); })
      .def_property_readonly("operand",
                             [](const Step& s) { return end_of(reads_operand(s.kind), s.operand); })
      .def(
          "__eq__", [](const Step& a, const Step& b) { return a == b; }, py::is_operator())
      .def("__hash__", [](const Step& step) { return py::hash(py::str(text_of(step))); })
      .def("__repr__", [](const Step& step) { return text_of(step); });
  m.def("work", &work, py::arg("first"), py::arg("chunks") = 1);
  m.def("input_", &input, py::arg("first"), py::arg("chunks") = 1, py::arg("vector") = 0);
  m.def("scratch", &scratch, py::arg("slot"), py::arg("first"), py::arg("chunks") = 1);
  m.def("send", &send, py::arg("peer"), py::arg("source"));
  m.def("recv", &recv, py::arg("peer"), py::arg("target"));
  m.def(
      "reduce",
      [](const Span& source, const Span& target, const std::optional<Span>& operand) {
        return gradred::reduce(source, operand.value_or(target), target);
      },
      py::arg("source"), py::arg("target"), py::arg("operand") = py::none());
  m.def("copy", &gradred::copy, py::arg("source"), py::arg("target"));
}

void bind_rounds(py::module_& m) {
  const auto whole = [](const Rounds& rounds) { return tuple_of(rounds); };
  py::class_<Rounds>(m, "Rounds", "The rounds of a schedule: a sequence that is made on demand.")
      .def("__len__", &Rounds::size)
      .def("__getitem__",
           [](const Rounds& rounds, py::ssize_t index) {
             const auto count = static_cast<py::ssize_t>(rounds.size());
             if (index < -count || index >= count) throw py::index_error("there is no such round");
             return py::tuple(
                 py::cast(rounds[static_cast<std::size_t>(index < 0 ? index + count : index)]));
           })
      .def("__getitem__",
           [](const Rounds& rounds, const py::slice& slice) {
             py::ssize_t begin = 0, end = 0, by = 0, count = 0;
             if (!slice.compute(static_cast<py::ssize_t>(rounds.size()), &begin, &end, &by,
                                &count)) {
               throw py::error_already_set();
             }
             return tuple_of(rounds, static_cast<std::size_t>(begin),
                             static_cast<std::size_t>(count), by);
           })
      .def(
          "__iter__",
          [](const Rounds& rounds) {
            return py::make_iterator(TupleIterator(rounds.begin()), TupleIterator(rounds.end()));
          },
          py::keep_alive<0, 1>())
      .def("__reversed__",
           [whole](const Rounds& rounds) {
             return py::module_::import("builtins").attr("reversed")(whole(rounds));
           })
      .def("__contains__",
           [whole](const Rounds& rounds, const py::object& round) {
             return whole(rounds).contains(round);
           })
      .def("index",
           [whole](const Rounds& rounds, const py::args& arguments) {
             return whole(rounds).attr("index")(*arguments);
           })
      .def("count", [whole](const Rounds& rounds,
                            const py::object& round) { return whole(rounds).attr("count")(round); })
      .def("__eq__",
           [whole](const Rounds& rounds, const py::object& other) -> py::object {
             if (py::isinstance<Rounds>(other)) return py::bool_(rounds == other.cast<Rounds>());
             return whole(rounds).attr("__eq__")(other);
           })
      .def("__hash__", [whole](const Rounds& rounds) { return py::hash(whole(rounds)); })
      .def("__repr__", [whole](const Rounds& rounds) { return py::repr(whole(rounds)); });
  py::module_::import("collections.abc").attr("Sequence").attr("register")(m.attr("Rounds"));
}

void bind_schedule(py::module_& m) {
  py::class_<Schedule, std::shared_ptr<Schedule>>(
      m, "Schedule", "What one rank does in one collective operation, in rounds.")
      .def(py::init(&schedule_from), py::arg("rounds"), py::kw_only(), py::arg("rank"),
           py::arg("size"), py::arg("chunks"), py::arg("collective") = "allreduce",
           py::arg("root") = 0, py::arg("name") = "user", py::arg("leaves") = std::vector<int>())
      .def_readonly("name", &Schedule::name)
      .def_property_readonly(
          "collective",
          [](const Schedule& schedule) { return schedules_name(schedule.collective); })
      .def_readonly("rank", &Schedule::rank)
      .def_readonly("size", &Schedule::size)
      .def_readonly("root", &Schedule::root)
      .def_readonly("chunks", &Schedule::chunks)
      .def_readonly("scratch_slots", &Schedule::scratch_slots)
      .def_readonly("in_place", &Schedule::in_place)
      .def_property_readonly(
          "leaves", [](const Schedule& schedule) { return py::tuple(py::cast(schedule.leaves)); })
      .def_readonly("rounds", &Schedule::rounds)
      .def(
          "__eq__", [](const Schedule& a, const Schedule& b) { return a == b; }, py::is_operator())
      .def("__hash__", [](const Schedule& schedule) { return py::hash(state_of(schedule)); })
      .def("__repr__", [](const Schedule& schedule) { return text_of(schedule); });
}

void bind_cost(py::module_& m) {
  const auto rounds = [](const Cost& cost) { return cost.inside.rounds + cost.across.rounds; };
  const auto moved = [](const Cost& cost) { return cost.inside.moved + cost.across.moved; };
  py::class_<Cost>(m, "Cost", R"(What an operation costs, for every length of the vector.

Over the rounds, the sum of what the busiest rank does of each kind: `rounds` that have messages,
of which in `rounds_across` some go to another host; `messages` beyond the first of a round; and in
vectors, `moved` (sent or received, whichever is more), of which `moved_across` by all ranks of a host
to or from others, `reduced`, `copied` and `coded` (encoded or decoded).)")
      .def_property_readonly("rounds", rounds)
      .def_property_readonly("rounds_across", [](const Cost& cost) { return cost.across.rounds; })
      .def_readonly("messages", &Cost::messages)
      .def_property_readonly("moved", moved)
      .def_property_readonly("moved_across", [](const Cost& cost) { return cost.across.moved; })
      .def_readonly("reduced", &Cost::reduced)
      .def_readonly("copied", &Cost::copied)
      .def_readonly("coded", &Cost::coded)
      .def("seconds", &seconds_of, py::arg("nbytes"), py::kw_only(), py::arg("alpha"),
           py::arg("beta"), py::arg("gamma") = 0.0, py::arg("gap") = 0.0, py::arg("delta") = 0.0,
           py::arg("alpha_inside") = std::nullopt, py::arg("beta_inside") = std::nullopt,
           py::arg("far") = 0.0, py::arg("slices") = 1)
      .def("__repr__", [=](const Cost& cost) {
        return py::str(
                   "<Cost: {:g} rounds, {:g} further messages; in vectors {:g} moved, {:g} "
                   "reduced, {:g} copied>")
            .format(rounds(cost), cost.messages, moved(cost), cost.reduced, cost.copied);
      });
}

void bind_results(py::module_& m) {
  py::class_<Report>(m, "ScheduleReport", "What the verifier found.")
      .def_readonly("ok", &Report::ok)
      .def_property_readonly("reason",
                             [](const Report& r) { return r.ok ? "" : describe(r.problem); })
      .def_property_readonly("rank", [](const Report& r) { return r.problem.rank; })
      .def_property_readonly("round", [](const Report& r) { return r.problem.round; })
      .def_property_readonly("step", [](const Report& r) { return r.problem.step; })
      .def_readonly("digest", &Report::digest)
      .def_readonly("rounds", &Report::rounds)
      .def_readonly("messages", &Report::messages)
      .def_readonly("sums", &Report::sums);
  py::class_<Traffic>(m, "Traffic", "What one rank moves: messages sent, and bytes.")
      .def_readonly("messages", &Traffic::messages)
      .def_readonly("sent", &Traffic::sent)
      .def_readonly("received", &Traffic::received)
      .def_readonly("reduced", &Traffic::reduced)
      .def_readonly("copied", &Traffic::copied)
      .def_readonly("coded", &Traffic::coded);
  bind_cost(m);
}

}  // namespace

void bind_schedules(py::module_& m) {
  bind_steps(m);
  bind_rounds(m);
  bind_schedule(m);
  bind_results(m);
  m.def("schedule_table", &table);
  m.def("make_schedule", &make, py::arg("collective"), py::arg("name"), py::arg("rank"),
        py::arg("size"), py::arg("parameters"));
  m.def(
      "schedule_from_input",
      [](const Schedule& schedule) { return schedule.in_place ? from_input(schedule) : schedule; },
      py::arg("schedule"));
  m.def("leaf_tree", &leaf_tree, py::arg("rank"), py::arg("leaves"), py::arg("chunks"));
  m.def("validate_schedule", py::overload_cast<const Schedule&>(&validate), py::arg("schedule"));
  const py::call_guard<WithoutGil> free;  // pure C++ that may take seconds
  m.def("verify_schedules", &verify, py::arg("schedules"), free);
  m.def("schedule_traffic", py::overload_cast<const Schedule&, std::size_t>(&traffic),
        py::arg("schedule"), py::arg("bytes"));
  m.def("schedule_cost", &cost_of, py::arg("schedules"), py::arg("host_of") = std::vector<int>());
  m.def("algorithm_cost", &cost_named, py::arg("collective"), py::arg("name"), py::arg("size"),
        py::arg("parameters"), py::arg("host_of") = std::vector<int>());
}

}  // namespace gradred
