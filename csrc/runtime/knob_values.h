// Parsers and formats of knob values. Parsers throw Unreadable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/knob.h"

namespace gradred {

inline constexpr std::string_view kOwnArrays = "own";  // value of the knob `ipc_arrays`
// Value of the knob `profile`: print a table, write no file.
inline constexpr std::string_view kProfileTable = "1";
// Values of the knob `deterministic`.
inline constexpr std::string_view kAnySize = "size", kAnyRanks = "ranks";

std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string stripped(std::string_view text);  // without white space at both ends

// Returns no value for an empty text, `none` or `auto`.
template <class Parse>
KnobValue unless_unset(std::string_view text, Parse parse) {
  const std::string word = lower(stripped(text));
  if (word.empty() || word == "none" || word == "auto") return {};
  return parse(text);
}
// Parses a duration above zero: "90", "1.5s", "200ms", "2min", "1h". Returns seconds.
double parse_duration(std::string_view text);
bool parse_flag(std::string_view text);
std::uint64_t parse_count(std::string_view text);
std::string parse_plan(std::string_view text);
std::string parse_device_plan(std::string_view text);
std::uint64_t parse_ipc_bytes(std::string_view text);
std::string parse_ipc_arrays(std::string_view text);
KnobValue parse_profile(std::string_view text);
KnobValue parse_deterministic(std::string_view text);

std::string seconds_as_written(double seconds);  // "0.2s", with all its digits
std::uint64_t in_nanoseconds(double seconds);    // at most some centuries

}  // namespace gradred
