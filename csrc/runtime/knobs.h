// The one table of knobs: each is an environment variable GRADRED_<NAME>, and settable in code.
//
// A value set in code wins over the environment, which wins over the default. The environment is
// read whenever values are asked for, so nothing depends on who comes first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace gradred {

struct Settings;

// Nothing where there is no value ("none", "auto"); durations are seconds.
using KnobValue = std::variant<std::monostate, bool, double, std::uint64_t, std::string>;

struct Knob {
  std::string_view name;     // in lower case, without the prefix
  std::string_view initial;  // as one would write it in the environment
  std::string_view unset;    // how no value is shown
  std::string_view help;
  KnobValue (*read)(std::string_view text);                   // throws Unreadable
  void (*apply)(const KnobValue& value, Settings& settings);  // null: not for communicators
};
// What a parser throws: why a text is no value, and what to do.
struct Unreadable {
  std::string found, remedy;
  std::string form{};  // in which it should be written; empty where the remedy is another
};

std::span<const Knob> knobs();
std::string variable_of(const Knob& knob);  // "GRADRED_TIMEOUT"
// As one would write it in the environment.
std::string shown(const Knob& knob, const KnobValue& value);
// By its name; throws UsageError that names the nearest one.
const Knob& knob_named(std::string_view name);

enum class KnobSource : std::uint8_t { kDefault, kEnvironment, kCode };
std::string_view name_of(KnobSource source);

struct KnobState {
  const Knob* knob;
  KnobValue value;
  KnobSource source;
};
// All of them in the order of the table. Throws UsageError for a variable that is no knob, and for
// a value that cannot be read.
std::vector<KnobState> knob_states();
// Looks likewise at variables that another process is to get.
void check_knobs(std::span<const std::pair<std::string, std::string>> variables);
// `asked`: how the program says it, for the error.
void set_knob(std::string_view name, std::string_view text, const std::string& asked);
void reset_knob(std::string_view name);
void reset_knobs();
// How often one of these three has been called: who keeps a value looks here whether it still
// holds.
std::uint64_t knob_changes();

// In seconds, above zero: "90", "1.5s", "200ms", "2min", "1h". Throws Unreadable.
double parse_duration(std::string_view text);

}  // namespace gradred
