#include "runtime/knobs.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "base/errors.h"
#include "base/nearest.h"
#include "comm/settings.h"
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
         .help = "Report the ranks that are missing once a wait has lasted this long, and again "
                 "each time that doubles.",
         .read = [](std::string_view text) -> KnobValue { return parse_duration(text); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.warn_ns = nanoseconds(value); }},
    Knob{.name = "timeout",
         .initial = "none",
         .unset = "none",
         .help = "Raise TimeoutError on every rank after a wait of this long. A blocking call "
                 "counts whole, with the work in it, so this must be longer than the longest call.",
         .read = [](std::string_view text) { return unless_unset(text, parse_duration); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.timeout_ns = nanoseconds(value); }},
    Knob{.name = "deterministic",
         .initial = "0",
         .unset = "",
         .help = "1: choose the plan from size, layout, count, type and op alone, so that a "
                 "repeated run gives the same bits; size: and from plans that add up in an order "
                 "which no count changes, so that buckets and fusion change no bits, either. Rank "
                 "0's value decides; set it on all.",
         .read = parse_deterministic,
         .apply =
             [](const KnobValue& value, Settings& settings) {
               settings.one_order = text_or_empty(value) == kAnySize;
               settings.deterministic = settings.one_order || on(value);
             }},
    Knob{.name = "tune",
         .initial = "1",
         .unset = "",
         .help = "Measure links and the MPI in the first call over several hosts, once for their "
                 "layout, and choose plans by that; 0: by round figures. Rank 0's value decides.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = [](const KnobValue& value, Settings& settings) { settings.tune = on(value); }},
    Knob{.name = "trace",
         .initial = "none",
         .unset = "none",
         .help = "Write each rank's operations to this file, in Chrome's trace format; its folder "
                 "is made.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.trace = text_or_empty(value); }},
    Knob{.name = "profile",
         .initial = "0",
         .unset = "0",
         .help = "Count what calls cost: 1 prints a table on rank 0 when the program ends, a file "
                 "name also writes each rank's figures to this file as JSON; its folder is made. "
                 "Rank 0's value decides.",
         .read = parse_profile,
         .apply =
             [](const KnobValue& value, Settings& settings) {
               const std::string file = text_or_empty(value);
               settings.profile = !file.empty();
               settings.profile_file = file == kProfileTable ? "" : file;
             }},
    Knob{.name = "result_hash",
         .initial = "none",
         .unset = "none",
         .help = "Write a line with a hash of its result for each call to this file of each rank, "
                 "so that two runs can be compared; its folder is made.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.result_hash = text_or_empty(value); }},
    Knob{.name = "allow_singleton",
         .initial = "0",
         .unset = "",
         .help = "Accept a communicator of size 1 although the launcher started more ranks.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = nullptr},
    Knob{.name = "plan",
         .initial = "auto",
         .unset = "auto",
         .help = "Use the plan of this name. An allreduce that it cannot carry out is an error; "
                 "other calls that have no such plan choose as usual.",
         .read = [](std::string_view text) { return unless_unset(text, parse_plan); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.plan = text_or_empty(value); }},
    Knob{.name = "device_plan",
         .initial = "auto",
         .unset = "auto",
         .help = "Use the plan of this name, one that has allreduces, wherever it can carry out a "
                 "call on arrays in GPUs' memory; measured: the fastest, which the first blocking "
                 "call on such arrays finds out. All ranks of such calls have to have theirs "
                 "there. Rank 0's decides.",
         .read = [](std::string_view text) { return unless_unset(text, parse_device_plan); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.device_plan = text_or_empty(value); }},
    Knob{.name = "cuda_aware_mpi",
         .initial = "auto",
         .unset = "auto",
         .help = "Whether plan mpi gives the MPI addresses in GPUs' memory; auto: where "
                 "MPIX_Query_cuda_support says that it takes them.",
         .read = [](std::string_view text) { return unless_unset(text, parse_flag); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               const bool* const flag = std::get_if<bool>(&value);
               settings.mpi_reads_devices = flag != nullptr ? std::optional(*flag) : std::nullopt;
             }},
    Knob{.name = "slices",
         .initial = "auto",
         .unset = "auto",
         .help = "Cut a vector into this many slices and keep them all in flight.",
         .read = [](std::string_view text) { return unless_unset(text, parse_count); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               const auto* count = std::get_if<std::uint64_t>(&value);
               settings.slices = count != nullptr ? *count : 0;
             }},
    Knob{.name = "shm",
         .initial = "1",
         .unset = "",
         .help = "Use the shared-memory plans between ranks of one host.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.shared_memory = on(value); }},
    Knob{.name = "single_copy",
         .initial = "1",
         .unset = "",
         .help =
             "Let ranks of one host read each other's memory in long calls, where that is faster. "
             "Rank 0's value decides.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.single_copy = on(value); }},
    Knob{.name = "fault",
         .initial = "none",
         .unset = "none",
         .help = "For tests: inject a fault, written rank:operation:round:kind[:argument] with "
                 "kind drop, delay, corrupt, die or fail.",
         .read = [](std::string_view text) { return unless_unset(text, parse_fault_knob); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.fault = text_or_empty(value); }},
    Knob{.name = "carry_env",
         .initial = "1",
         .unset = "",
         .help = "Let `gradred run` carry all variables of its shell to ranks on other hosts, "
                 "unencrypted; 0 makes `--no-env` the default.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = nullptr},
    Knob{.name = "progress_thread",
         .initial = "1",
         .unset = "",
         .help = "Let a thread drive non-blocking operations while the program computes.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.progress_thread = on(value); }},
    Knob{.name = "ipc_bytes",
         .initial = "33554432",
         .unset = "none",
         .help =
             "Bytes of device memory that each rank of a communicator shares with its peers' "
             "devices (CUDA IPC), at least 4096 for each rank; none: arrays in device memory go "
             "through the host's.",
         .read = [](std::string_view text) { return unless_unset(text, parse_ipc_bytes); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               const auto* bytes = std::get_if<std::uint64_t>(&value);
               settings.ipc_bytes = bytes != nullptr ? *bytes : 0;
             }},
    Knob{.name = "ipc_arrays",
         .initial = "all",
         .unset = "",
         .help = "Which arrays in device memory peers' devices read and write where they lie: all "
                 "that CUDA exports, whose memory the device has back when peers have heard that "
                 "it was freed; or own, those of gradred.empty alone.",
         .read = [](std::string_view text) -> KnobValue { return parse_ipc_arrays(text); },
         .apply =
             [](const KnobValue& value, Settings& settings) {
               settings.ipc_programs = text_or_empty(value) != kOwnArrays;
             }},
    Knob{.name = "audit_pointers",
         .initial = "0",
         .unset = "",
         .help = "Compare what is known of the address of each array on a GPU with all that the "
                 "CUDA driver says of it, warn where they differ, and go by the driver.",
         .read = [](std::string_view text) -> KnobValue { return parse_flag(text); },
         .apply = nullptr},
    Knob{.name = "libnvrtc",
         .initial = "auto",
         .unset = "auto",
         .help = "The compiler of GPU kernels (NVRTC), by name or path.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply = nullptr},
    Knob{.name = "libnccl",
         .initial = "auto",
         .unset = "auto",
         .help = "NCCL's library, by name or path.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply = nullptr},
    Knob{.name = "clock_file",
         .initial = "none",
         .unset = "none",
         .help = "For tests: a file of 8 bytes, nanoseconds that are added to the clock by which "
                 "waits end. All processes of the job map it.",
         .read = [](std::string_view text) { return unless_unset(text, stripped); },
         .apply = [](const KnobValue& value,
                     Settings& settings) { settings.clock_file = text_or_empty(value); }},
    Knob{.name = "libcuda",
         .initial = "libcuda.so.1",
         .unset = "",
         .help = "For tests: the CUDA driver's library, by name or path.",
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
                   ": there is no such knob. The nearest one is " +
                   (is_variable ? variable_of(near) : std::string(near.name)) + ".");
}

KnobValue read(const Knob& knob, std::string_view text, const std::string& asked) {
  try {
    return knob.read(text);
  } catch (const Unreadable& why) {
    throw UsageError(without_zeros(asked) + ": " + why.found + ". " + why.remedy + ".");
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
