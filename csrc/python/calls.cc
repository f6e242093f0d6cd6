// Calls with everything resolved to addresses: what the Python modules build on.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>

#include "base/errors.h"
#include "base/failure.h"
#include "base/news.h"
#include "base/status.h"
#include "comm/driving.h"
#include "comm/families.h"
#include "comm/farewell.h"
#include "comm/mpi_handles.h"
#include "comm/registry.h"
#include "comm/set_up.h"
#include "comm/set_up_calls.h"
#include "comm/watch.h"
#include "node/neighbours.h"
#include "node/process.h"
#include "plan/selector.h"
#include "python/call.h"
#include "python/comm.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/leave.h"
#include "python/mpi4py.h"
#include "python/names.h"
#include "python/one_thread.h"
#include "python/persistent.h"
#include "python/strangers.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

constexpr std::array<std::string_view, 4> kKindNames = {"allreduce", "reduce_scatter_block",
                                                        "allgather", "bcast"};

std::shared_ptr<PyCall> make_call(const std::string& kind, std::optional<std::uintptr_t> send,
                                  std::uintptr_t recv, std::size_t count, const std::string& dtype,
                                  const std::string& op, double factor, int root,
                                  std::uint64_t layout, const std::string& plan,
                                  std::shared_ptr<Schedule> schedule) {
  auto made = std::make_shared<PyCall>();
  made->plan = plan;
  made->call = {.kind = find_tag<Kind>(kKindNames, kind, "kind of call"),
                .send = send ? reinterpret_cast<const void*>(*send) : kInPlace,
                .recv = reinterpret_cast<void*>(recv),
                .count = count,
                .dtype = dtype_named(dtype),
                .op = op_named(op),
                .factor = factor,
                .root = root,
                .layout = layout,
                .plan = plan.empty() ? nullptr : made->plan.c_str(),
                .schedule = std::move(schedule)};
  return made;
}

void run(const py::object& comm, const PyCall& call) {
  Communicator& communicator = communicator_of(comm.ptr());
  const auto alive = communicator.shared_from_this();
  const OneThread one_thread(communicator);
  GilHook hook;
  try {
    validate(call.call, communicator.size());
  } catch (const UsageError& error) {
    communicator.refuse(error.what(), hook);
    throw;
  }
  communicator.run(call.call, hook);
}

// A communicator of another kind has no peers that could wait here.
void refuse(const py::object& comm, const std::string& reason, bool blocking) {
  Communicator& communicator = communicator_of(comm.ptr());
  const OneThread one_thread(communicator);
  if (!blocking) return communicator.refuse_started(reason);
  GilHook hook;
  communicator.refuse(reason, hook);
}

// What a callback raises has no caller to go to. Before it comes an error that is on its way here.
void call_once(PyObject* function, PyObject* argument) {
  PyObject *kind = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &error, &trace);
  PyObject* const result = PyObject_CallOneArg(function, argument);
  if (result == nullptr) PyErr_WriteUnraisable(function);
  Py_XDECREF(result);
  Py_DECREF(function);
  Py_DECREF(argument);
  PyErr_Restore(kind, error, trace);
}

// Without a limit for None. A year is as good as none, and does not overflow.
std::uint64_t deadline_in(std::optional<double> seconds) {
  if (!seconds) return UINT64_MAX;
  return now_ns() + static_cast<std::uint64_t>(1e9 * std::clamp(*seconds, 0.0, 3e7));
}

// A non-blocking call in flight.
class PyOperation {
 public:
  explicit PyOperation(std::shared_ptr<StartedOperation> operation)
      : operation_(std::move(operation)) {}
  // Who tests again and again waits as well: the time limit counts from the first test.
  bool test() {
    require_rank();
    const DoneCallbacks::Waiter waiter(operation_.get());
    if (!operation_->ended()) {
      const InCall in_call(operation_->observation());
      if (!testing_) testing_ = std::make_unique<Testing>();
      testing_->search.look();
      const WithoutGil released;
      if (!operation_->advance()) carry_on();
    }
    done_callbacks().call_without_threads();
    if (!operation_->ended()) return false;
    done_callbacks().call_those_of(operation_.get());
    GilHook hook;
    count_operation(hook);
    operation_->told();
    return true;
  }
  // Whether it has ended within this time; throws what ended it.
  bool wait(std::optional<double> seconds) {
    require_rank();
    const std::uint64_t deadline = deadline_in(seconds);
    const DoneCallbacks::Waiter waiter(operation_.get());
    const InCall in_call(operation_->ended() ? nullptr : operation_->observation());
    RequestHook hook;
    count_operation(hook);
    operation_->told();
    const bool ended = wait_until(*operation_, hook, deadline);
    if (!ended) return false;
    done_callbacks().call_those_of(operation_.get());
    done_callbacks().call_without_threads();
    operation_->rethrow();
    return true;
  }
  void add_done_callback(const py::object& function, const py::object& argument) {
    require_rank();
    if (!operation_->ended() && thread_may_drive()) done_callbacks().use_threads();
    PyObject* const called = py::object(function).release().ptr();
    PyObject* const given = py::object(argument).release().ptr();
    operation_->when_ended([called, given] { with_gil([&] { call_once(called, given); }); });
  }
  void slept(double seconds) {
    if (Observation* const observation = operation_->observation(); observation != nullptr) {
      observation->spent(static_cast<std::uint64_t>(1e9 * seconds));
    }
  }
  void rethrow() const { operation_->rethrow(); }
  bool ended() const { return operation_->ended(); }
  bool failed() const { return operation_->ended() && operation_->failed(); }
  bool holds_memory() const { return operation_->holds_memory(); }
  bool handed_over() const { return operation_->handed_over(); }
  std::optional<std::size_t> request() const {
    const mpi::Handle request = operation_->request();
    return request == mpi::get().is.request_null ? std::nullopt : std::optional(request);
  }

 private:
  struct Testing {
    std::mutex mutex;
    Watch watch;
    Search search;  // the GIL is its lock
  };

  void carry_on() {
    try {
      drive_if_due();  // others may have to go first
      if (operation_->ended()) return;
      operation_->tested();
      const std::unique_lock lock(testing_->mutex, std::try_to_lock);
      if (!lock.owns_lock()) return;  // another thread tests it, too
      testing_->watch.check(AboutOperation{*operation_});
    } catch (const TransportError&) {  // the time is over, or the MPI has failed
      operation_->abandon(std::current_exception());
    }
  }

  std::shared_ptr<StartedOperation> operation_;
  std::unique_ptr<Testing> testing_;
};

// The GIL is held throughout: of several threads that have waited, one gives it back.
void release_request(const py::object& request, std::uintptr_t status) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle handle = mpi.normalise(handle_of(request.ptr()));
  if (handle == mpi.is.request_null) return;
  int done = 0;
  // An error is that of the operation, of which the caller tells more.
  static_cast<void>(mpi.call.Test(
      &handle, &done, status == 0 ? mpi.is.status_ignore : reinterpret_cast<void*>(status)));
  put_handle(request.ptr(), mpi.is.request_null);
}

PyOperation start(const py::object& comm, const PyCall& call, bool mpi_request) {
  Communicator& communicator = communicator_of(comm.ptr());
  const OneThread one_thread(communicator);
  try {
    validate(call.call, communicator.size());
  } catch (const UsageError& error) {
    communicator.refuse_started(error.what());
    throw;
  }
  Call started = call.call;
  started.mpi_request = mpi_request;
  return PyOperation(communicator.start(started));
}

// What most programs pass, without a closer look.
std::optional<PyOperation> start_plain(const py::object& comm, py::handle send, py::handle recv,
                                       py::handle op) {
  const auto call = plain_allreduce(send.ptr(), recv.ptr(), op.ptr());
  if (!call || !mpi::get().handle_of(call->dtype)) return std::nullopt;
  Communicator& communicator = communicator_of(comm.ptr());
  const OneThread one_thread(communicator);
  return PyOperation(communicator.start(*call));
}

py::dict described(const Parameters& p, bool has_levels) {
  const Parameters usual;
  py::dict parameters;  // those that say something
  if (p.root != usual.root) parameters["root"] = p.root;
  if (p.k != usual.k) parameters["k"] = p.k;
  if (has_levels) {
    parameters["local"] = p.local;
    parameters["inside"] = p.inside;
    parameters["across"] = p.across;
  }
  return parameters;
}

py::object described(const std::optional<Specification>& specification) {
  if (!specification) return py::none();
  py::dict result;
  result["algorithm"] = specification->algorithm;
  result["parameters"] = described(specification->parameters, specification->parameters.local != 0);
  result["reason"] = specification->reason;
  return result;
}

py::dict described(const Plan& plan) {
  py::dict result;
  result["plan"] = plan.name;
  result["family"] = plan.family->name();
  result["medium"] = name_of(plan.family->medium());
  result["about"] = plan.family->about();
  result["slices"] = plan.slices;
  result["reason"] = plan.reason;
  result["seconds"] = plan.seconds;
  result["hash"] = plan.hash();
  result["parameters"] = described(plan.parameters, plan.parameters.local != 0);
  result["specification"] = described(plan.specification);
  return result;
}

py::dict plan_for(const py::object& comm, const PyCall& call, bool blocking) {
  const Communicator& communicator = communicator_of(comm.ptr());
  const Plan left{.family = &mpi_family(), .name = "mpi", .reason = kLeftToMpi};
  if (!blocking && !communicator.starts()) return described(left);
  const std::shared_ptr<const Plan> plan = communicator.plan_for(call.call, blocking);
  return described(blocking || communicator.starts_by(*plan) ? *plan : left);
}

py::dict described(const Figures& figures) {
  const CostModel& model = figures.model;
  py::dict result;
  result["alpha"] = model.across.alpha;
  result["beta"] = model.across.beta;
  result["gamma"] = model.gamma;
  result["gap"] = model.gap;
  result["delta"] = model.delta;
  result["alpha_inside"] = model.inside.alpha;
  result["beta_inside"] = model.inside.beta;
  result["far"] = model.far;
  result["source"] = figures.measured() ? "measured on " + figures.day + " by ranks on such hosts"
                                        : "round figures for a fast network, not measured";
  return result;
}

// What a file has that a communicator over several hosts has left.
py::dict read_kept(const std::string& text) {
  const KeptFigures kept = figures_from(text);
  py::dict result = described(kept.figures);
  result["mpi"] = kept.key.mpi;
  result["hosts"] = kept.key.hosts;
  result["layout"] = kept.key.layout;
  result["announcement"] = kept.figures.announcement;
  py::list sizes;
  for (const MeasuredSize& one : kept.figures.sizes) {
    sizes.append(py::make_tuple(one.bytes, one.mpi, one.schedule, one.predicted));
  }
  result["sizes"] = sizes;
  return result;
}

// For ranks that need not exist.
py::dict choose_plan(const std::string& collective, std::size_t bytes,
                     const std::vector<int>& host_of, bool shared_memory, const std::string& plan,
                     std::size_t slices, const std::string& op, const std::string& dtype,
                     const std::string& kept) {
  Place place{.size = static_cast<int>(host_of.size()), .topology = Topology::of(host_of)};
  if (!shared_memory) place.why_no_memory = "GRADRED_SHM is off";
  if (place.topology.hosts > 1) {
    place.why_no_memory = "the ranks are on " + std::to_string(place.topology.hosts) + " hosts";
  }
  const Figures figures = kept.empty() ? assumed_figures() : figures_from(kept).figures;
  place.costs = std::make_shared<Costs>(place.topology, figures);
  const Question question{.collective = collective_named(collective),
                          .bytes = bytes,
                          .plan = place.size == 1 ? std::string_view() : plan,
                          .slices = slices,
                          .mpi_may_carry = mpi_computes_alike(op_named(op), dtype_named(dtype))};
  py::dict result = described(choose(plan_families(), question, place));
  result["model"] = described(figures);
  return result;
}

py::list families() {
  py::list result;
  for (const Family* family : plan_families()) {
    py::dict row, plans;
    for (const char* name : {"allreduce", "reduce_scatter", "allgather", "bcast"}) {
      plans[name] = family->plans(collective_named(name));
    }
    row["name"] = family->name();
    row["about"] = family->about();
    row["medium"] = name_of(family->medium());
    row["plans"] = plans;
    result.append(row);
  }
  return result;
}

py::dict comm_info(const py::object& comm) {
  const Communicator& communicator = communicator_of(comm.ptr());
  py::dict result;
  result["hosts"] = communicator.topology().hosts;
  result["host_of"] = communicator.topology().host_of;
  result["shares_memory"] = communicator.shares_memory();
  result["node_reason"] = communicator.node_reason();
  return result;
}

void configure(bool shared_memory, const std::string& plan, std::size_t slices,
               std::size_t ranks_on_host, const std::string& trace, const std::string& fault,
               bool progress_thread, bool profile, bool deterministic, bool tune,
               const std::string& figures) {
  settings() = {shared_memory, plan,    slices,        ranks_on_host, progress_thread, trace,
                fault,         profile, deterministic, tune,          figures};
}

void limit_waits(double warn_after, double timeout) {
  wait_limits().warn = static_cast<std::uint64_t>(1e9 * warn_after);
  wait_limits().timeout = static_cast<std::uint64_t>(1e9 * timeout);
}

}  // namespace

void bind_calls(py::module_& m) {
  py::class_<PyCall, std::shared_ptr<PyCall>>(m, "Call").def(
      py::init(&make_call), py::arg("kind"), py::arg("send"), py::arg("recv"), py::arg("count"),
      py::arg("dtype"), py::arg("op") = "sum", py::kw_only(), py::arg("factor") = 1.0,
      py::arg("root") = 0, py::arg("layout") = 0, py::arg("plan") = "",
      py::arg("schedule") = std::shared_ptr<Schedule>(),
      "One collective call on raw addresses; send None means in place.");
  py::class_<PyOperation>(m, "Operation")
      .def("test", &PyOperation::test)
      .def("wait", &PyOperation::wait, py::arg("seconds") = std::nullopt)
      .def("add_done_callback", &PyOperation::add_done_callback, py::arg("function"),
           py::arg("argument"))
      .def("rethrow", &PyOperation::rethrow)
      .def("slept", &PyOperation::slept, py::arg("seconds"),
           "The program has waited so long for it, between calls of test().")
      .def_property_readonly("ended", &PyOperation::ended)
      .def_property_readonly("failed", &PyOperation::failed)
      .def_property_readonly("holds_memory", &PyOperation::holds_memory)
      .def_property_readonly("handed_over", &PyOperation::handed_over)
      .def_property_readonly("request", &PyOperation::request);
  m.def(
      "plain_allreduce",
      [](py::handle send, py::handle recv, py::handle op) -> std::shared_ptr<PyCall> {
        const auto call = plain_allreduce(send.ptr(), recv.ptr(), op.ptr());
        if (!call || !mpi::get().handle_of(call->dtype)) return nullptr;
        return std::make_shared<PyCall>(PyCall{*call, {}});
      },
      py::arg("sendbuf"), py::arg("recvbuf"), py::arg("op"),
      "The call that plain NumPy arrays of MPI's types and a predefined MPI.Op mean; None where a "
      "closer look is needed.");
  m.def("persistent_type", &persistent_type, py::arg("prequest"),
        "A class derived from MPI.Prequest whose instances can be called.");
  m.def("run", &run, py::arg("comm"), py::arg("call"), "Blocks until the result is in place.");
  m.def("start", &start, py::arg("comm"), py::arg("call"), py::kw_only(),
        py::arg("mpi_request") = true,
        "Returns at once; the memory must live until the operation has ended. With `mpi_request` "
        "the MPI's own Wait and Test serve it, too.");
  m.def("start_plain", &start_plain, py::arg("comm"), py::arg("sendbuf"), py::arg("recvbuf"),
        py::arg("op"),
        "Starts the allreduce that plain NumPy arrays of MPI's types and a predefined MPI.Op mean; "
        "None, and nothing done, where a closer look is needed.");
  m.def("refuse", &refuse, py::arg("comm"), py::arg("reason"), py::kw_only(), py::arg("blocking"),
        "This rank's arguments of a collective call were refused: the peers' calls fail, too.");
  m.def(
      "leave_to_mpi",
      [](const py::object& comm, const std::string& kind, std::uint64_t detail) {
        Communicator& communicator = communicator_of(comm.ptr());
        const OneThread one_thread(communicator);
        GilHook hook;
        communicator.leave_to_mpi(find_tag<Kind>(kKindNames, kind, "kind"), detail, hook);
      },
      py::arg("comm"), py::arg("kind"), py::arg("detail") = 0,
      "Blocks until all ranks have agreed to leave this call to the MPI.");
  m.def(
      "agree_on_init",
      [](const py::object& comm, const PyCall& call) {
        Communicator& communicator = communicator_of(comm.ptr());
        const OneThread one_thread(communicator);
        GilHook hook;
        communicator.agree_on_init(call.call, hook);
      },
      py::arg("comm"), py::arg("call"),
      "Blocks until all ranks have agreed on this persistent call; sets up what gradred needs.");
  m.def(
      "flag_time",
      [](const py::object& comm, unsigned turns) {
        Communicator& communicator = communicator_of(comm.ptr());
        const OneThread one_thread(communicator);
        GilHook hook;
        return communicator.flag_time(hook, turns);
      },
      py::arg("comm"), py::arg("turns") = 2000,
      "Seconds that a flag takes between the cores of rank 0 and rank 1, the mean of so many "
      "turns; "
      "blocking and collective. 0.0 on other ranks, and where no memory is shared.");
  m.def(
      "stop",
      [] {
        const WithoutGil released;
        if (!process_poisoned) engine().settle(std::chrono::seconds(20));
        finish_operations();
      },
      "End the progress thread, give up what is in flight and call its callbacks: at exit.");
  m.def(
      "call_callback",
      [](const py::object& function, const py::object& argument) {
        call_once(py::object(function).release().ptr(), py::object(argument).release().ptr());
      },
      py::arg("function"), py::arg("argument"),
      "Call it; what it raises goes to sys.unraisablehook.");
  m.def("release_request", &release_request, py::arg("request"), py::arg("status"),
        "Give the MPI's request of an ended operation back, and make it null; `status` is the "
        "address of a status, or 0.");
  m.def(
      "prepare",
      [](const py::object& comm) {
        Communicator& communicator = communicator_of(comm.ptr());
        const auto alive = communicator.shared_from_this();
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
        communicator.finish_on_mpi(hook);
      },
      py::arg("comm"),
      "Blocks until no non-blocking call of gradred's that the MPI carries out is in flight on the "
      "communicator. UsageError while a call on it has not returned.");
  m.def("forked", &forbid_communication,
        "This process is the fork of a rank: no calls from now on.");
  m.def(
      "starts",
      [](const py::object& comm) {
        Communicator& communicator = communicator_of(comm.ptr());
        const OneThread one_thread(communicator);
        return communicator.starts();
      },
      py::arg("comm"),
      "Whether non-blocking calls are gradred's own and not the MPI's; all ranks have agreed.");
  m.def("plan_for", &plan_for, py::arg("comm"), py::arg("call"), py::arg("blocking") = true);
  m.def("plan_families", &families, "Every family of plans, in the order in which it is asked.");
  m.def("choose_plan", &choose_plan, py::arg("collective"), py::arg("bytes"), py::arg("host_of"),
        py::kw_only(), py::arg("shared_memory") = true, py::arg("plan") = "", py::arg("slices") = 0,
        py::arg("op") = "sum", py::arg("dtype") = "float32", py::arg("figures") = "",
        "The plan of a call by ranks on these hosts; needs neither a communicator nor an MPI.");
  m.def("read_figures", &read_kept, py::arg("text"));
  m.def(
      "layout_text", [](std::vector<int> of) { return layout_text(Topology::of(std::move(of))); },
      py::arg("host_of"), "As files of figures name it.");
  m.def("hosts_text", &hosts_text, py::arg("names"), "As files of figures name them.");
  m.def("comm_info", &comm_info, py::arg("comm"));
  m.def("configure", &configure, py::arg("shared_memory"), py::arg("plan"), py::arg("slices"),
        py::arg("ranks_on_host"), py::arg("trace") = "", py::arg("fault") = "",
        py::arg("progress_thread") = true, py::arg("profile") = false,
        py::arg("deterministic") = false, py::arg("tune") = false, py::arg("figures") = "");
  m.def("limit_waits", &limit_waits, py::arg("warn_after"), py::arg("timeout"),
        "Seconds of one wait until it is reported, and until it is given up; 0 is never.");
  m.def("use_status_file", &use_status_file, py::arg("descriptor"),
        "A file in memory whose second 4096 bytes are zero: for its last operation and its waits.");
  m.def(
      "describe_call", [](std::uint64_t what) { return describe_with_bytes({.what = what}); },
      py::arg("what"),
      "A call in words, from the number that says it in announcements and status files.");
  m.def(
      "ignore_signal", [](int number) { std::signal(number, SIG_IGN); }, py::arg("number"),
      "What Python's own module does in the main thread only.");
  m.def(
      "ranks_met", [] { return companions().size(); },
      "Of this job on this host, other than this process.");
  m.def(
      "meet_rank",
      [](int world_rank, std::int64_t pid, std::int32_t status_file) {
        const auto process = process_numbered(pid, status_file);
        if (!process || !meet_companion(*process)) return;
        Registry::get().remember(world_rank, *process);
      },
      py::arg("world_rank"), py::arg("pid"), py::arg("status_file"),
      "Another rank of this job on this host, and which of its descriptors its status file has.");
  m.def(
      "use_news_page",
      [](std::uintptr_t address) { use_news_page(reinterpret_cast<const NewsPage*>(address)); },
      py::arg("address"),
      "Memory of this rank's keeper that tells which ranks have failed; 0: none.");
  m.def(
      "poisoned", [] { return process_poisoned.load(std::memory_order_relaxed); },
      "Whether a communicator of this process has failed: MPI_Finalize would wait for peers.");
  m.def(
      "first_failure",
      [] {
        const auto report = first_failure();
        return report ? text_with_kind(*report) : std::string();
      },
      "The first failure of a communicator of this process, 'TimeoutError: ...'; '' if none.");
  m.def("take_over_finalize", &take_over_finalize, py::arg("mpi4py"),
        "MPI_Finalize is called only if that would not wait for ranks that never come; `mpi4py` is "
        "the file of mpi4py.MPI. False where its call was not found.");
  m.def("use_voice", &use_voice, py::arg("pipe"), py::arg("inode"),
        "The pipe to this rank's keeper, who hears of MPI_Finalize through it; -1: none.");
  m.def("set_last_words", &set_last_words, py::arg("reason"),
        "Why the program ends, for the peers that wait for it.");
  m.def("write_trace", &write_trace, "Write this rank's trace to the file that configure() named.");
  m.def("require_running_mpi", &require_running_mpi,
        "UsageError before MPI.Init and after MPI.Finalize, when most of the MPI must be let be.");
  m.def("in_flight", [] { return engine().in_flight(); });
  m.def(
      "reap",
      [] {
        forget_freed();
        Registry::get().reap();
      },
      "Let go of freed communicators, and free duplicates that none uses any more.");
  m.def(
      "mpi_has",
      [](const PyCall& call) { return mpi_handles(call.call.op, call.call.dtype).has_value(); },
      py::arg("call"), "Whether the MPI has the type of a call, and its operation on this type.");
  m.def("has_reduction", [](const std::string& op, const std::string& dtype) {
    return find_reduction(op_named(op), dtype_named(dtype)) != nullptr;
  });
}

}  // namespace gradred
