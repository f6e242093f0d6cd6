// The table of knobs. Each knob is an environment variable GRADRED_<NAME>, and can be set in code.
//
// A value set in code takes precedence over the environment, which takes precedence over the
// default. The environment is read whenever values are asked for, so the order of calls does not
// matter.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/knob.h"

namespace gradred {

std::span<const Knob> knobs();
std::string variable_of(const Knob& knob);  // "GRADRED_TIMEOUT"
// The value as it is written in the environment.
std::string shown(const Knob& knob, const KnobValue& value);
// Throws UsageError, which names the nearest knob.
const Knob& knob_named(std::string_view name);

enum class KnobSource : std::uint8_t { kDefault, kEnvironment, kCode };
std::string_view name_of(KnobSource source);

struct KnobState {
  const Knob* knob;
  KnobValue value;
  KnobSource source;
};
// All knobs in the order of the table. Throws UsageError for a GRADRED_ variable that is not a
// knob, and for a value that cannot be read.
std::vector<KnobState> knob_states();
// Checks variables that another process is going to get, as knob_states() checks this process's.
void check_knobs(std::span<const std::pair<std::string, std::string>> variables);
// `asked`: how the program wrote the setting; for the error.
void set_knob(std::string_view name, std::string_view text, const std::string& asked);
void reset_knob(std::string_view name);
void reset_knobs();
// How often one of these three functions has been called. Code that caches a value compares this
// number to see whether the value is still valid.
std::uint64_t knob_changes();

}  // namespace gradred
