// One knob, that is, one row of the table in knobs.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace gradred {

struct Settings;

// No value for "none" and "auto"; durations are in seconds.
using KnobValue = std::variant<std::monostate, bool, double, std::uint64_t, std::string>;

struct Knob {
  std::string_view name;     // in lower case, without the prefix
  std::string_view initial;  // the default, as it is written in the environment
  std::string_view unset;    // how no value is displayed
  std::string_view help;
  KnobValue (*read)(std::string_view text);  // throws Unreadable
  // nullptr if it is not a setting of communicators.
  void (*apply)(const KnobValue& value, Settings& settings);
};
// Thrown by a parser: why a text is not a valid value, and the remedy.
struct Unreadable {
  std::string found, remedy;
  std::string form{};  // how the value must be written; empty if the remedy is another
};

}  // namespace gradred
