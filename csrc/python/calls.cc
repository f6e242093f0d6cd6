// Calls with resolved addresses, on which the Python modules are built.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <csignal>
#include <memory>
#include <sstream>
#include <utility>

#include "base/errors.h"
#include "base/failure.h"
#include "base/mixed.h"
#include "calls/mpi_handles.h"
#include "calls/why_not.h"
#include "comm/gathered.h"
#include "comm/known_handles.h"
#include "comm/set_up/set_up_calls.h"
#include "comm/shutdown_handshake.h"
#include "engine/notices/registry.h"
#include "families/devices/staged_calls.h"
#include "families/families.h"
#include "families/mpi/family_mpi.h"
#include "liveness/process.h"
#include "plan/selector.h"
#include "python/comm_calls.h"
#include "python/gil.h"
#include "python/leave.h"
#include "python/memory_comm.h"
#include "python/mpi4py.h"
#include "python/names.h"
#include "python/one_thread.h"
#include "python/persistent.h"
#include "python/py_call.h"
#include "python/py_errors.h"
#include "python/py_operation.h"
#include "python/request.h"
#include "python/wait_hook.h"
#include "reduce/wire.h"
#include "runtime/launched.h"
#include "runtime/rank_process.h"

namespace py = pybind11;

namespace gradred {

std::shared_ptr<PyOperation> start_call(Communicator& communicator, const PyCall& call,
                                        bool mpi_request) {
  if (communicator.is_over()) require_running_mpi();
  const OneThread one_thread(communicator);
  Call started;
  std::string why_waits;
  try {
    validate(call.call, communicator.rank(), communicator.size());
    started = ordered(call.call, call.placement, communicator, why_waits);
  } catch (const Error& error) {
    communicator.refuse_started(error.what());
    throw;
  }
  started.mpi_request = mpi_request;
  const auto order = started.order ? started.order->stream : nullptr;
  auto made =
      std::make_shared<PyOperation>(communicator.start(started), order, std::move(why_waits));
  if (order != nullptr && order->stream()) made->wait_until_given();
  warn_if_left_to_mpi(communicator);
  return made;
}

namespace {

// The kinds of calls that a program makes on its arrays.
Kind kind_named(const std::string& name) {
  const std::span<const KindInfo> called(kKinds.data(), kCalledKinds);
  const Kind kind =
      find_tag<Kind>(called, name, "kind of call", [](const KindInfo& info) { return info.name; });
  if (info_of(kind).schedules.empty()) throw UsageError(name + ": only a named operation has it");
  return kind;
}

std::shared_ptr<PyCall> make_call(const std::string& kind, std::optional<std::uintptr_t> send,
                                  std::uintptr_t recv, std::size_t count, const std::string& dtype,
                                  const std::string& op, double factor, int root,
                                  std::uint64_t layout, const std::string& plan,
                                  std::shared_ptr<Schedule> schedule, const std::string& wire,
                                  const std::optional<Placement>& placement) {
  auto made = std::make_shared<PyCall>();
  made->plan = plan;
  if (placement) made->placement = *placement;
  made->call = {.kind = kind_named(kind),
                .in = {send ? reinterpret_cast<const void*>(*send) : kInPlace,
                       memory_of(made->placement.send)},
                .out = {reinterpret_cast<void*>(recv), memory_of(made->placement.recv)},
                .count = count,
                .dtype = dtype_named(dtype),
                .op = op_named(op),
                .factor = factor,
                .root = root,
                .layout = layout,
                .wire = wire_named(wire),
                .plan = plan.empty() ? nullptr : made->plan.c_str(),
                .schedule = std::move(schedule)};
  return made;
}

py::object plain_reduction_of(const std::string& kind, int size, const py::object& send,
                              const py::object& recv, const py::object& op) {
  AnyCall made;
  const std::array<PyObject*, 2> buffers = {send.ptr(), recv.ptr()};
  if (!plain_reduction(kind_named(kind), size, buffers.data(), op.ptr(), made)) return py::none();
  auto call = std::make_shared<PyCall>(PyCall{made.call, {}, std::move(made.placement)});
  return py::make_tuple(std::move(call),
                        py::make_tuple(made.send.keeper(send.ptr()), made.recv.keeper(recv.ptr())));
}

void run_call(Communicator& communicator, const PyCall& call) {
  const OneThread one_thread(communicator);
  GilHook hook;
  try {
    validate(call.call, communicator.rank(), communicator.size());
  } catch (const Error& error) {
    communicator.refuse(error.what(), hook);
    throw;
  }
  communicator.run(ordered_or_refused(call.call, call.placement, communicator, hook), hook);
}

void run(const py::object& comm, const PyCall& call, const py::object& passed) {
  Communicator& communicator = communicator_of(comm.ptr());
  const auto alive = communicator.shared();
  try {
    run_call(communicator, call);
  } catch (const UsageError&) {  // the GIL is held again here
    set_python_error(std::current_exception(), passed.ptr());
    throw py::error_already_set();
  }
}

// Returns the state of a lane, or None.
py::object agree_on_init(const py::object& comm, PyCall& made, bool one_order) {
  Communicator& communicator = communicator_of(comm.ptr());
  std::shared_ptr<Communicator> lane;
  {
    const OneThread one_thread(communicator);
    GilHook hook;
    communicator.agree_on_init(made.call, hook);
    lane = communicator.lane(made.call, one_order, hook);
  }
  if (lane != nullptr) return memory_comm_capsule(std::move(lane));
  // Ranks that start such calls in another order get an error, also if their shapes are equal.
  made.call.layout = mixed(made.call.layout, communicator.number_persistent());
  return py::none();
}

// Makes the peers' call fail. In communicators of other kinds, no peer waits in gradred.
void refuse(const py::object& comm, const std::string& reason, bool blocking) {
  Communicator& communicator = communicator_of(comm.ptr());
  const OneThread one_thread(communicator);
  if (!blocking) return communicator.refuse_started(reason);
  GilHook hook;
  communicator.refuse(reason, hook);
}

std::shared_ptr<PyOperation> start(const py::object& comm, const PyCall& call, bool mpi_request) {
  return start_call(communicator_of(comm.ptr()), call, mpi_request);
}

std::string repr_of(const PyCall& made) {
  const auto& [call, plan, placement] = made;
  std::ostringstream text;
  text << "Call(" << name_of(call.kind) << ", " << call.in.data << ", " << call.out.data << ", "
       << call.count << ", " << name_of(call.dtype) << ", " << name_of(call.op) << ", wire='"
       << name_of(call.wire) << "', factor=" << call.factor << ", root=" << call.root
       << ", layout=" << call.layout << ", plan='" << plan << "', on=(" << placement.send << ", "
       << placement.recv << "), after=";
  for (const auto& [memory, stream] : placement.after) text << stream << ", ";
  text << "stream=" << placement.stream.value_or(0) << ")";
  return text.str();
}

bool has_levels(const Parameters& p) { return p.local != 0 || !p.groups.empty(); }

py::dict described(const Parameters& p, bool has_levels) {
  const Parameters usual;
  py::dict parameters;  // those that differ from the defaults
  if (p.root != usual.root) parameters["root"] = p.root;
  if (p.k != usual.k) parameters["k"] = p.k;
  if (has_levels) {
    if (p.local != 0) parameters["local"] = p.local;
    if (!p.groups.empty()) parameters["groups"] = p.groups;
    if (p.leaders != 0) parameters["leaders"] = p.leaders;
    if (!p.inside.empty()) parameters["inside"] = p.inside;
    if (p.wire != usual.wire) {
      parameters["wire"] = name_of(p.wire);
    } else if (!p.across.empty()) {
      parameters["across"] = p.across;
    }
  }
  return parameters;
}

py::object described(const std::optional<Specification>& specification) {
  if (!specification) return py::none();
  py::dict result;
  result["algorithm"] = specification->algorithm;
  result["parameters"] =
      described(specification->parameters, has_levels(specification->parameters));
  result["reason"] = specification->reason;
  return result;
}

py::dict described(const Plan& plan) {
  py::dict result;
  result["plan"] = plan.name;
  result["family"] = family_of(plan).name();
  result["medium"] = family_of(plan).medium();
  result["about"] = family_of(plan).about();
  result["slices"] = plan.slices;
  result["reason"] = plan.reason;
  result["seconds"] = plan.seconds;
  result["hash"] = plan.hash();
  result["parameters"] = described(plan.parameters, has_levels(plan.parameters));
  result["specification"] = described(plan.specification);
  return result;
}

py::dict plan_for(const py::object& comm, const PyCall& call, bool blocking) {
  Communicator& communicator = communicator_of(comm.ptr());
  const Plan left{.source = &mpi_family(), .name = "mpi", .reason = kLeftToMpi};
  if (!blocking && !communicator.starts()) return described(left);
  const std::shared_ptr<const Plan> plan = communicator.choice().plan_for(call.call, blocking);
  return described(blocking || communicator.dispatch().starts_by(*plan) ? *plan : left);
}

py::dict described(const CostModel& model) {
  py::dict result;
  result["alpha"] = model.across.alpha;
  result["beta"] = model.across.beta;
  result["gamma"] = model.gamma;
  result["gap"] = model.gap;
  result["delta"] = model.delta;
  result["alpha_inside"] = model.inside.alpha;
  result["beta_inside"] = model.inside.beta;
  result["far"] = model.far;
  return result;
}

py::dict described(const Figures& figures) {
  py::dict result = described(figures.model);
  result["source"] = figures.measured() ? "measured on " + figures.day + " by ranks on such hosts"
                                        : "round figures for a fast network, not measured";
  return result;
}

// The model for data in memory that ranks share, by built-in figures.
py::dict memory_model() {
  const CostModel model = assumed_figures().in_memory();
  py::dict result = described(model);
  result["call"] = model.on_host;
  result["source"] = "round figures for memory, not measured";
  return result;
}

// Reads a file of figures that a communicator over several hosts has written.
py::dict read_kept(const std::string& text) {
  const KeptFigures kept = figures_from(text);
  py::dict result = described(kept.figures);
  result["mpi"] = kept.key.mpi;
  result["hosts"] = kept.key.hosts;
  result["layout"] = kept.key.layout;
  result["announcement"] = kept.figures.announcement;
  py::list sizes;
  for (const MeasuredSize& one : kept.figures.sizes) {
    py::list tried;
    for (const TriedPlan& plan : one.tried) {
      tried.append(py::make_tuple(plan.label, plan.seconds, plan.predicted));
    }
    sizes.append(py::make_tuple(one.bytes, one.mpi, tried));
  }
  result["sizes"] = sizes;
  return result;
}

// Chooses a plan for ranks on the given hosts, which need not exist.
py::dict choose_plan(const std::string& collective, std::size_t bytes,
                     const std::vector<int>& host_of, bool shared_memory, const std::string& plan,
                     std::size_t slices, const std::string& op, const std::string& dtype,
                     const std::string& kept, bool one_order, const std::string& wire) {
  Place place{.size = static_cast<int>(host_of.size()), .topology = Topology::of(host_of)};
  if (!shared_memory) place.why_no_memory = "GRADRED_SHM is off";
  place.why_no_host_memory = place.why_no_memory;
  if (place.topology.hosts > 1) {
    place.why_no_memory = "the ranks are on " + std::to_string(place.topology.hosts) + " hosts";
  }
  const Figures figures = kept.empty() ? assumed_figures() : figures_from(kept).figures;
  place.costs = std::make_shared<Costs>(place.topology, figures);
  const Question question{.collective = collective_named(collective),
                          .bytes = bytes,
                          .plan = place.size == 1 ? std::string_view() : plan,
                          .slices = slices,
                          .mpi_may_carry = mpi_computes_alike(op_named(op), dtype_named(dtype)),
                          .one_order = one_order,
                          .wire = place.topology.hosts > 1 ? wire_named(wire) : Wire::kNone};
  const Plan chosen = choose(plan_sources(), question, place);
  py::dict result = described(chosen);
  const bool crosses = place.topology.hosts > 1 && question.plan.empty();
  if (crosses && GatheredCall::serves({.kind = question.collective, .count = bytes}, place.size)) {
    result["reason"] = chosen.reason + std::string("; ") + GatheredCall::kInstead;
  }
  const bool by_memory = family_of(chosen).medium() == "memory";
  result["model"] = by_memory ? memory_model() : described(figures);
  return result;
}

py::list families() {
  py::list result;
  for (const Family* family : plan_families()) {
    py::dict row, plans;
    for (std::size_t kind = 0; kind < kCalledKinds; ++kind) {
      const std::string_view name = kKinds[kind].schedules;
      if (!name.empty()) plans[py::str(std::string(name))] = family->plans(static_cast<Kind>(kind));
    }
    row["name"] = family->name();
    row["about"] = family->about();
    row["medium"] = family->medium();
    row["plans"] = plans;
    result.append(row);
  }
  return result;
}

// The table of base/kinds.h, for the kinds that a program calls on its arrays.
py::list call_kinds() {
  py::list result;
  for (std::size_t i = 0; i < kCalledKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    if (info_of(kind).schedules.empty()) continue;
    py::dict row;
    row["name"] = name_of(kind);
    row["schedules"] = info_of(kind).schedules;
    row["reduces"] = reduces(kind);
    row["has_root"] = has_root(kind);
    row["has_blocks"] = has_blocks(kind);
    row["gives_block"] = info_of(kind).input == Part::kOwnBlock;
    result.append(row);
  }
  return result;
}

py::dict comm_info(const py::object& comm) {
  Communicator& communicator = communicator_of(comm.ptr());
  py::dict result;
  result["hosts"] = communicator.place().topology.hosts;
  result["host_of"] = communicator.place().topology.host_of;
  result["shares_memory"] = communicator.node_path().serves_all();
  result["node_reason"] = communicator.place().why_no_memory;
  result["hosts_share_memory"] = communicator.place().hosts_share_memory();
  result["host_reason"] = communicator.place().why_no_host_memory;
  const NodeGroup* const group = communicator.node_path().group();
  result["cache_groups"] = group == nullptr ? std::vector<std::uint32_t>{} : group->cache_groups();
  result["device_path"] = device_path(communicator.parts());
  return result;
}

}  // namespace

void bind_calls(py::module_& m) {
  py::class_<PyCall, std::shared_ptr<PyCall>>(m, "Call")
      .def(py::init(&make_call), py::arg("kind"), py::arg("send"), py::arg("recv"),
           py::arg("count"), py::arg("dtype"), py::arg("op") = "sum", py::kw_only(),
           py::arg("factor") = 1.0, py::arg("root") = 0, py::arg("layout") = 0,
           py::arg("plan") = "", py::arg("schedule") = std::shared_ptr<Schedule>(),
           py::arg("wire") = "", py::arg("placement") = py::none(),
           "One collective call on raw addresses; send None means in place.")
      .def("__repr__", &repr_of);
  m.def("plain_reduction", &plain_reduction_of, py::arg("kind"), py::arg("size"),
        py::arg("sendbuf"), py::arg("recvbuf"), py::arg("op"),
        "Return the call that buffers and a predefined operation mean, and what to keep alive; "
        "None where "
        "a closer look is needed.");
  m.def("persistent_type", &persistent_type, py::arg("prequest"),
        "Return a class derived from MPI.Prequest whose instances can be called.");
  m.def("replace_method", &replace_method, py::arg("type"), py::arg("name"), py::arg("method"),
        "Set a method of one of mpi4py's types.");
  m.def(
      "run", &run, py::arg("comm"), py::arg("call"), py::arg("passed") = py::none(),
      "Blocks until the result is in place. `passed` is what the program has passed, for errors.");
  m.def("start", &start, py::arg("comm"), py::arg("call"), py::kw_only(),
        py::arg("mpi_request") = true,
        "Returns at once; the memory must live until the operation has ended. With `mpi_request` "
        "the MPI's own Wait and Test serve it, too.");
  m.def("refuse", &refuse, py::arg("comm"), py::arg("reason"), py::kw_only(), py::arg("blocking"),
        "This rank's arguments of a collective call were refused: the peers' calls fail, too.");
  m.def(
      "leave_to_mpi",
      [](const py::object& comm, const std::string& kind, std::uint64_t detail) {
        Communicator& communicator = communicator_of(comm.ptr());
        const OneThread one_thread(communicator);
        GilHook hook;
        communicator.leave_to_mpi(kind_named(kind), detail, hook);
      },
      py::arg("comm"), py::arg("kind"), py::arg("detail") = 0,
      "Blocks until all ranks have agreed to leave this call to the MPI.");
  m.def("agree_on_init", &agree_on_init, py::arg("comm"), py::arg("call"), py::arg("one_order"),
        "Blocks until all ranks have agreed on this persistent call; sets up what gradred needs. "
        "Returns the state of a communicator for this call alone, or None if the call has to be "
        "started in the same order on all ranks, as with `one_order` on all of them.");
  m.def(
      "one_way_latency",
      [](const py::object& comm, unsigned turns) {
        Communicator& communicator = communicator_of(comm.ptr());
        const OneThread one_thread(communicator);
        GilHook hook;
        communicator.prepare(hook);
        return communicator.node_path().one_way_latency(hook, turns);
      },
      py::arg("comm"), py::arg("turns") = 2000,
      "Return the seconds that a flag takes between the cores of rank 0 and rank 1, the mean of so "
      "many "
      "turns; "
      "blocking and collective. 0.0 on other ranks, and where no memory is shared.");
  m.def(
      "call_callback",
      [](const py::object& function, const py::object& argument) {
        call_once(py::object(function).release().ptr(), py::object(argument).release().ptr());
      },
      py::arg("function"), py::arg("argument"),
      "Call the function; what it raises goes to sys.unraisablehook.");
  m.def(
      "prepare",
      [](const py::object& comm) {
        Communicator& communicator = communicator_of(comm.ptr());
        const auto alive = communicator.shared();
        const OneThread one_thread(communicator);
        GilHook hook;
        communicator.prepare(hook);
      },
      py::arg("comm"), "Blocking and collective: sets up what gradred needs, unless that is done.");
  m.def(
      "await_duplicate",
      [](const py::object& comm, const py::object& request) {
        GilHook hook;
        mpi::Handle pending = handle_of(request.ptr());
        const int code = await_duplicate(handle_of(comm.ptr()), pending, hook);
        put_handle(request.ptr(), pending);
        return code;
      },
      py::arg("comm"), py::arg("request"),
      "Blocks until all ranks have duplicated the communicator; `request` is that of its Idup. "
      "Returns the MPI's error code.");
  m.def(
      "prepare_free",
      [](const py::object& comm) {
        Communicator& communicator = communicator_of(comm.ptr());
        const OneThread one_thread(communicator);
        GilHook hook;
        communicator.on_mpi().finish(hook);
      },
      py::arg("comm"),
      "Blocks until no non-blocking call of gradred's that the MPI carries out is in flight on the "
      "communicator. UsageError while a call on it has not returned.");
  m.def(
      "starts",
      [](const py::object& comm, const PyCall& made) {
        Communicator& communicator = communicator_of(comm.ptr());
        const OneThread one_thread(communicator);
        return communicator.starts() || !mpi_handles(made.call.op, made.call.dtype);
      },
      py::arg("comm"), py::arg("call"),
      "Return whether gradred itself carries this call out if it is started, and not the MPI. So "
      "it is "
      "where the MPI has no such type or operation; otherwise all ranks have agreed.");
  m.def(
      "by_leaves", [](const py::object& comm) { return communicator_of(comm.ptr()).by_leaves(); },
      py::arg("comm"), "Return whether sums of floats have to be those of leaves.");
  m.def("plan_for", &plan_for, py::arg("comm"), py::arg("call"), py::arg("blocking") = true);
  m.def("call_kinds", &call_kinds, "Return the kinds of calls on arrays, one row each.");
  m.def("plan_families", &families, "Every family of plans, in the order in which it is asked.");
  m.def("memory_model", &memory_model);
  m.def("choose_plan", &choose_plan, py::arg("collective"), py::arg("bytes"), py::arg("host_of"),
        py::kw_only(), py::arg("shared_memory") = true, py::arg("plan") = "", py::arg("slices") = 0,
        py::arg("op") = "sum", py::arg("dtype") = "float32", py::arg("figures") = "",
        py::arg("one_order") = false, py::arg("wire") = "",
        "Return the plan of a call by ranks on these hosts; needs neither a communicator nor an "
        "MPI.");
  m.def("read_figures", &read_kept, py::arg("text"));
  m.def(
      "layout_text", [](std::vector<int> of) { return layout_text(Topology::of(std::move(of))); },
      py::arg("host_of"), "Return the text by which files of figures name a layout.");
  m.def("hosts_text", &hosts_text, py::arg("names"),
        "Return the text by which files of figures name hosts.");
  m.def("comm_info", &comm_info, py::arg("comm"));
  m.def(
      "ignore_signal", [](int number) { std::signal(number, SIG_IGN); }, py::arg("number"),
      "Ignore a signal, in any thread; Python's own module does so in the main thread only.");
  m.def(
      "replace_isend",
      [](std::uintptr_t function) {
        mpi::get();  // throws without an MPI
        auto& isend = mpi::for_tests().call.Isend;
        const auto before =
            std::exchange(isend, reinterpret_cast<std::decay_t<decltype(isend)>>(function));
        return reinterpret_cast<std::uintptr_t>(before);
      },
      py::arg("function"),
      "For tests: messages are sent by this C function from now on. Returns the address of the one "
      "before.");
  m.def(
      "poisoned", [] { return process_poisoned.load(std::memory_order_relaxed); },
      "Return whether a communicator of this process has failed: MPI_Finalize would wait for "
      "peers.");
  m.def(
      "end_program",
      [] {
        const WithoutGil released;
        end_program();
      },
      "At exit: end what is in flight, tell the peers and write what the knobs ask for.");
  m.def("take_over_finalize", &take_over_finalize, py::arg("mpi4py"),
        "MPI_Finalize is called only if that would not wait for ranks that never come; `mpi4py` is "
        "the file of mpi4py.MPI. False where its call was not found.");
  m.def("release_gil_in_init", &release_gil_in_init, py::arg("mpi4py"),
        "From now on MPI.Init_thread lets other threads run while it waits for other ranks.");
  m.def("exit_at_once", &exit_at_once,
        "When the process exits, no library cleans up: a thread may be in MPI_Init.");
  m.def("use_launcher", &use_launcher, py::arg("pipe"), py::arg("board"),
        "A thread of this process stands for a supervisor: as the variables of failure_board.py "
        "and rank_pipe.py have it.");
  m.def("host_id", &host_id, "Return a text that is equal on all processes that may share memory.");
  m.def("set_exit_reason", &set_exit_reason, py::arg("reason"), py::arg("of_loss") = false,
        "Why the program ends, for the peers that wait for it. `of_loss`: another rank has ended, "
        "whose end launchers are to see first.");
  m.def("leave_before_threads", &leave_before_threads,
        "The main thread has ended by an exception, and others keep the process going: for the "
        "peers this rank has left.");
  m.def(
      "require_running_mpi",
      [](const py::object& comm) {
        if (memory_comm_state(comm.ptr()) == nullptr) require_running_mpi();
      },
      py::arg("comm") = py::none(),
      "UsageError before MPI.Init and after MPI.Finalize, when most of the MPI must be let be; not "
      "for a communicator that needs none.");
  m.def("in_flight", [] { return engine().in_flight(); });
  m.def(
      "reap",
      [] {
        KnownHandles::get().forget_freed();
        Registry::get().reap();
      },
      "Let go of freed communicators, and free duplicates that none uses any more.");
}

}  // namespace gradred
