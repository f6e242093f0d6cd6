#include "runtime/knobs.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "base/errors.h"
#include "base/nearest.h"
#include "calls/settings.h"
#include "runtime/environment.h"
#include "runtime/knob_values.h"

namespace gradred {
namespace {

constexpr std::string_view kPrefix = "GRADRED_";

bool on(const KnobValue& value) { return std::get<bool>(value); }
std::string text_or_empty(const KnobValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : std::string();
}
std::uint64_t nanoseconds(const KnobValue& value) {
  const auto* seconds = std::get_if<double>(&value);
  return seconds != nullptr ? in_nanoseconds(*seconds) : 0;
}

constexpr std::array kKnobs = {
    Knob{.name = "warn_after",
         .initial = "60s",
         .unset = "",
         .help = "Time after which a waiting rank reports the missing ranks. It reports again "
                 "whenever that time has doubled.",
         .read = [](std::string_view text) -> KnobValue { return parse_duration(text); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.warn_ns = nanoseconds(value); }},
    Knob{.name = "timeout",
         .initial = "none",
         .unset = "none",
         .help = "Time limit of a wait, after which every rank raises TimeoutError. It applies to "
                 "a whole blocking call, so set it to more than the longest call takes.",
         .read = [](std::string_view text) { return unless_unset(text, parse_duration); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.timeout_ns = nanoseconds(value); }},
    Knob{.name = "deterministic",
         .initial = "0",
         .unset = "",
         .help = "1 chooses the plan only by size, layout, count, type and operation, so that a "
                 "repeated run gives the same bits. size also keeps the order of sums for all "
                 "counts, so that buckets and fusion change no bits. ranks also refuses sums whose "
                 "bits depend on the number of ranks. Rank 0's value applies; set it on all ranks.",
         .read = parse_deterministic,
         .apply =
             [](const KnobValue& value, Settings& settings) {
               settings.by_leaves = text_or_empty(value) == kAnyRanks;
               settings.one_order = settings.by_leaves || text_or_empty(value) == kAnySize;
               settings.deterministic = settings.one_order || on(value);
             }},
    Knob{.name = "leaves",
         .initial = "none",
         .unset = "none",
         .help = "Number of leaves of the job, which `leaves=\"job\"` splits among the ranks. "
                 "`gradred run --leaves` sets it.",
         .read = [](std::string_view text) { return unless_unset(text, parse_count); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               const auto* leaves = std::get_if<std::uint64_t>(&value);
               settings.leaves = leaves != nullptr ? *leaves : 0;
             }},
    Knob{.name = "tune",
         .initial = "1",
         .unset = "",
         .help = "1 measures links and the MPI in the first call over several hosts, once for each"
                 " layout of ranks, and chooses plans by the result. 0 uses built-in figures. Rank"
                 " 0's value applies.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = [](const KnobValue& value, Settings& settings) { settings.tune = on(value); }},
    Knob{.name = "trace",
         .initial = "none",
         .unset = "none",
         .help = "File for each rank's operations, in Chrome's trace format; a name that ends in "
                 ".et: a Chakra execution trace, and chakra stands for chakra.et. gradred creates "
                 "its folder.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               settings.trace = text_or_empty(value);
               if (settings.trace == "chakra") settings.trace += ".et";
             }},
    Knob{.name = "profile",
         .initial = "0",
         .unset = "0",
         .help = "1 counts the costs of calls, and prints a table on rank 0 when the program ends."
                 " A file name also writes each rank's figures there as JSON; gradred creates its "
                 "folder. Rank 0's value applies.",
         .read = parse_profile,
         .apply =
             [](const KnobValue& value, Settings& settings) {
               const std::string file = text_or_empty(value);
               settings.profile = !file.empty();
               settings.profile_file = file == kProfileTable ? "" : file;
             }},
    Knob{.name = "metrics",
         .initial = "none",
         .unset = "none",
         .help = "Figures while the program runs, for Prometheus and OpenTelemetry: a file of each "
                 "rank (%r stands for its number), a port such as :9400, which one rank of each "
                 "host serves, or otel. Python programs only; rank 0's value decides whether "
                 "calls are counted.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               settings.metrics = text_or_empty(value);
               if (settings.metrics == "OTEL") settings.metrics = "otel";
             }},
    Knob{.name = "result_hash",
         .initial = "none",
         .unset = "none",
         .help = "File of each rank, to which every call writes a line with a hash of its result, "
                 "so that two runs can be compared. gradred creates its folder.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.result_hash = text_or_empty(value); }},
    Knob{.name = "allow_singleton",
         .initial = "0",
         .unset = "",
         .help = "1 accepts a communicator of size 1 although the launcher has started more ranks.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = nullptr},
    Knob{.name = "plan",
         .initial = "auto",
         .unset = "auto",
         .help = "Name of the plan to use. An allreduce that the plan cannot carry out is an "
                 "error. Other calls without such a plan choose as usual.",
         .read = [](std::string_view text) { return unless_unset(text, parse_plan); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.plan = text_or_empty(value); }},
    Knob{.name = "device_plan",
         .initial = "auto",
         .unset = "auto",
         .help = "Name of the plan for calls on arrays in GPU memory, wherever it can carry them "
                 "out. The arrays of all ranks have to be in GPU memory. Rank 0's value applies.",
         .read = [](std::string_view text) { return unless_unset(text, parse_device_plan); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.device_plan = text_or_empty(value); }},
    Knob{.name = "cuda_aware_mpi",
         .initial = "auto",
         .unset = "auto",
         .help = "Whether plan mpi passes addresses of GPU memory to the MPI. auto does so if "
                 "MPIX_Query_cuda_support says that the MPI accepts them.",
         .read = [](std::string_view text) { return unless_unset(text, parse_flag); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               const bool* const flag = std::get_if<bool>(&value);
               settings.mpi_reads_devices = flag != nullptr ? std::optional(*flag) : std::nullopt;
             }},
    Knob{.name = "slices",
         .initial = "auto",
         .unset = "auto",
         .help = "Number of slices of a vector that are in flight at the same time.",
         .read = [](std::string_view text) { return unless_unset(text, parse_count); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               const auto* count = std::get_if<std::uint64_t>(&value);
               settings.slices = count != nullptr ? *count : 0;
             }},
    Knob{.name = "shm",
         .initial = "1",
         .unset = "",
         .help = "1 uses shared memory between the ranks of a host, 0 messages.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.shared_memory = on(value); }},
    Knob{.name = "single_copy",
         .initial = "1",
         .unset = "",
         .help =
             "1 lets the ranks of a host read each other's memory in long calls, where that is"
             " faster, and puts arrays that come again into huge pages. Rank 0's value applies.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.single_copy = on(value); }},
    Knob{.name = "threads",
         .initial = "1",
         .unset = "",
         .help =
             "Threads of each rank that share its work on arrays from 1 MiB on in shared memory,"
             " for ranks that have several cores each. Results keep their bits. Ignored, with a "
             "message, where ranks share cores. Rank 0's value applies.",
         .read = [](std::string_view text) -> KnobValue { return parse_count(text); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.threads = std::get<std::uint64_t>(value); }},
    Knob{.name = "carry_env",
         .initial = "1",
         .unset = "",
         .help = "1 makes `gradred run` send all variables of its shell to ranks on other hosts, "
                 "unencrypted. 0 makes `--no-env` the default.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = nullptr},
    Knob{.name = "torch",
         .initial = "0",
         .unset = "",
         .help =
             "1 lets gradred carry out what a program requests from torch.distributed's backends "
             "gloo and mpi, or without a name for tensors in host memory.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = nullptr},
    Knob{.name = "progress_thread",
         .initial = "1",
         .unset = "",
         .help = "1 starts a thread that advances non-blocking operations while the program "
                 "computes.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.progress_thread = on(value); }},
    Knob{.name = "ipc_bytes",
         .initial = "33554432",
         .unset = "none",
         .help = "Bytes of device memory that each rank of a communicator shares with its peers' "
                 "devices (CUDA IPC), at least 4096 for each rank. none copies arrays in device "
                 "memory through host memory.",
         .read = [](std::string_view text) { return unless_unset(text, parse_ipc_bytes); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               const auto* bytes = std::get_if<std::uint64_t>(&value);
               settings.ipc_bytes = bytes != nullptr ? *bytes : 0;
             }},
    Knob{.name = "ipc_arrays",
         .initial = "all",
         .unset = "",
         .help = "Arrays in device memory that peers' devices access in place. all: all arrays "
                 "that CUDA can export; their memory is reused once peers know that it was freed. "
                 "own: only arrays of gradred.empty.",
         .read = [](std::string_view text) -> KnobValue { return parse_ipc_arrays(text); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               settings.ipc_programs = text_or_empty(value) != kOwnArrays;
             }},
    Knob{.name = "libnvrtc",
         .initial = "auto",
         .unset = "auto",
         .help = "Name or path of the compiler of GPU kernels (NVRTC).",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply = nullptr},
    Knob{.name = "libnccl",
         .initial = "auto",
         .unset = "auto",
         .help = "Name or path of NCCL's library.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply = nullptr},
    Knob{.name = "clock_file",
         .initial = "none",
         .unset = "none",
         .help = "For tests: a file of 8 bytes with nanoseconds that are added to the clock of "
                 "waits. All processes of the job map it.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.clock_file = text_or_empty(value); }},
    Knob{.name = "libcuda",
         .initial = "libcuda.so.1",
         .unset = "",
         .help = "For tests: name or path of the CUDA driver's library.",
         .read = [](std::string_view text) -> KnobValue { return stripped(text); },
         .apply = nullptr},
};

struct SetInCode {
  std::mutex mutex;
  std::atomic<std::uint64_t> changes{0};
  std::map<std::string_view, KnobValue> values;  // by the knob's name in the table
};
SetInCode& set_in_code() {
  static auto* values = new SetInCode;
  return *values;
}

// A C string would end at the first zero byte.
std::string without_zeros(std::string text) {
  std::ranges::replace(text, '\0', '?');
  return text;
}

// `asked`: the name as it was written, with or without the prefix of variables.
[[noreturn]] void throw_no_such_knob(std::string_view asked) {
  const bool is_variable = asked.starts_with(kPrefix);
  std::array<std::string_view, kKnobs.size()> names;
  std::ranges::transform(kKnobs, names.begin(), &Knob::name);
  const std::string name = lower(is_variable ? asked.substr(kPrefix.size()) : asked);
  const Knob& near = kKnobs[nearest(name, names)];
  throw UsageError(without_zeros(std::string(asked)) +
                   ": there is no such setting. The nearest one is " +
                   (is_variable ? variable_of(near) : std::string(near.name)) + ".");
}

KnobValue read(const Knob& knob, std::string_view text, const std::string& asked) {
  try {
    return knob.read(text);
  } catch (const Unreadable& why) {
    const char* const end = why.remedy.ends_with('?') ? "" : ".";
    throw UsageError(without_zeros(asked) + ": " + why.found + ". " + why.remedy + end);
  }
}

std::map<std::string_view, KnobValue> values_in(
    std::span<const std::pair<std::string, std::string>> variables) {
  std::map<std::string_view, KnobValue> found;
  for (const auto& [key, text] : variables) {
    if (!key.starts_with(kPrefix)) continue;
    const auto knob =
        std::ranges::find_if(kKnobs, [&](const Knob& one) { return variable_of(one) == key; });
    if (knob == kKnobs.end()) throw_no_such_knob(key);
    found[knob->name] = read(*knob, text, key + "=" + text);
  }
  return found;
}

}  // namespace

std::span<const Knob> knobs() { return kKnobs; }

std::string variable_of(const Knob& knob) { return std::string(kPrefix) + upper(knob.name); }

std::string shown(const Knob& knob, const KnobValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return std::string(knob.unset);
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "1" : "0";
  if (const double* seconds = std::get_if<double>(&value)) return seconds_as_written(*seconds);
  if (const auto* count = std::get_if<std::uint64_t>(&value)) return std::to_string(*count);
  return std::get<std::string>(value);
}

const Knob& knob_named(std::string_view name) {
  const auto knob = std::ranges::find(kKnobs, name, &Knob::name);
  if (knob == kKnobs.end()) throw_no_such_knob(name);
  return *knob;
}

std::string_view name_of(KnobSource source) {
  constexpr std::array<std::string_view, 3> names = {"default", "environment", "code"};
  return names[static_cast<std::size_t>(source)];
}

std::vector<KnobState> knob_states() {
  const auto in_environment = values_in(environment());
  SetInCode& code = set_in_code();
  const std::lock_guard lock(code.mutex);
  std::vector<KnobState> states;
  for (const Knob& knob : kKnobs) {
    if (const auto set = code.values.find(knob.name); set != code.values.end()) {
      states.push_back({&knob, set->second, KnobSource::kCode});
    } else if (const auto in = in_environment.find(knob.name); in != in_environment.end()) {
      states.push_back({&knob, in->second, KnobSource::kEnvironment});
    } else {
      states.push_back({&knob, knob.read(knob.initial), KnobSource::kDefault});
    }
  }
  return states;
}

void check_knobs(std::span<const std::pair<std::string, std::string>> variables) {
  values_in(variables);
}

void set_knob(std::string_view name, std::string_view text, const std::string& asked) {
  const Knob& knob = knob_named(name);
  KnobValue value = read(knob, text, asked);
  SetInCode& code = set_in_code();
  const std::lock_guard lock(code.mutex);
  code.values[knob.name] = std::move(value);
  ++code.changes;
}

void reset_knob(std::string_view name) {
  const Knob& knob = knob_named(name);
  SetInCode& code = set_in_code();
  const std::lock_guard lock(code.mutex);
  code.values.erase(knob.name);
  ++code.changes;
}

void reset_knobs() {
  SetInCode& code = set_in_code();
  const std::lock_guard lock(code.mutex);
  code.values.clear();
  ++code.changes;
}

std::uint64_t knob_changes() { return set_in_code().changes; }

}  // namespace gradred
