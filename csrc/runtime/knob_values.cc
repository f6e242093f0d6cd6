#include "runtime/knob_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/nearest.h"
#include "families/devices/device_workspace.h"
#include "families/families.h"
#include "plan/plan.h"

namespace gradred {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";
constexpr std::string_view kDigits = "0123456789";

[[noreturn]] void refuse(const std::string& form) {
  throw Unreadable{"cannot be read", "Write " + form, form};
}

template <char (*change)(char)>
std::string changed(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), change);
  return result;
}
char lower_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c; }
char upper_letter(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c + 'A' - 'a') : c; }
bool is_letter(char c) { return upper_letter(c) >= 'A' && upper_letter(c) <= 'Z'; }

std::optional<bool> flag_in(std::string_view text) {
  constexpr std::array<std::string_view, 8> kWords = {"1", "true",  "yes", "on",
                                                      "0", "false", "no",  "off"};
  const auto found = std::ranges::find(kWords, lower(stripped(text)));
  if (found == kWords.end()) return std::nullopt;
  return found - kWords.begin() < 4;
}

// Reads the digits at the beginning, with or without a decimal point, and removes them from `text`.
std::optional<double> number_in(std::string_view& text) {
  const std::size_t whole = std::min(text.find_first_not_of(kDigits), text.size());
  std::size_t length = whole;
  if (length < text.size() && text[length] == '.') {
    length = std::min(text.find_first_not_of(kDigits, length + 1), text.size());
    if (whole == 0 && length == 1) return std::nullopt;
  }
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + length, value, std::chars_format::fixed);
  if (length == 0 || error != std::errc()) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

// All names, each once.
std::vector<std::string> plan_names(std::initializer_list<const char*> collectives) {
  std::vector<std::string> names;
  for (const char* collective : collectives) {
    for (const Family* family : plan_families()) {
      for (const std::string& name : family->plans(collective_named(collective))) {
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
      }
    }
  }
  return names;
}

std::vector<std::string> plan_names() {
  return plan_names({"allreduce", "reduce_scatter", "allgather", "bcast"});
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

std::string lower(std::string_view text) { return changed<lower_letter>(text); }
std::string upper(std::string_view text) { return changed<upper_letter>(text); }

std::string stripped(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
}

double parse_duration(std::string_view given) {
  constexpr std::array<std::pair<std::string_view, double>, 5> kUnits = {
      {{"ms", 1e-3}, {"s", 1.0}, {"", 1.0}, {"min", 60.0}, {"h", 3600.0}}};
  const std::string form = "a duration above zero such as 90, 1.5s, 200ms, 2min or 1h";
  const std::string text = stripped(given);
  std::string_view rest = text;
  const std::optional<double> number = number_in(rest);
  if (!number) refuse(form);
  const auto unit =
      std::ranges::find(kUnits, lower(stripped(rest)), &std::pair<std::string_view, double>::first);
  if (unit == kUnits.end()) refuse(form);
  const double seconds = *number * unit->second;
  if (!(seconds > 0) || !std::isfinite(seconds)) refuse(form);
  return seconds;
}

bool parse_flag(std::string_view text) {
  const std::optional<bool> flag = flag_in(text);
  if (!flag) refuse("1 or 0 (also true, false, yes, no, on, off)");
  return *flag;
}

std::uint64_t parse_count(std::string_view given) {
  const std::string text = stripped(given);
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || count == 0) refuse("a whole number, at least 1");
  return count;
}

namespace {

// Returns one of `known`; the error names the nearest one, or all.
std::string parse_name(std::string_view given, const std::vector<std::string>& known) {
  const std::string name = stripped(given);
  constexpr std::string_view kOther = "_.+-";
  const bool is_name =
      is_letter(name.front()) && std::ranges::all_of(name, [&](char c) {
        return is_letter(c) || kDigits.find(c) != kDigits.npos || kOther.find(c) != kOther.npos;
      });
  if (!is_name) refuse("a name");
  if (std::ranges::find(known, name) != known.end()) return name;
  const std::vector<std::string_view> words(known.begin(), known.end());
  const auto near = meant(name, words);
  throw Unreadable{"no plan has that name", near ? "Did you mean '" + known[*near] + "'?"
                                                 : "Use auto or one of " + joined(known)};
}

}  // namespace

std::string parse_plan(std::string_view given) { return parse_name(given, plan_names()); }

// A plan without allreduces is refused: allreduces would ignore it without notice.
std::string parse_device_plan(std::string_view given) {
  const std::vector<std::string> known = plan_names({"allreduce"});
  const std::vector<std::string> others = plan_names();
  const std::string name = stripped(given);
  const auto has = [&name](const auto& names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (has(others) && !has(known)) {
    throw Unreadable{"that plan carries out no allreduces", "Use auto or one of " + joined(known)};
  }
  return parse_name(given, known);
}

std::uint64_t parse_ipc_bytes(std::string_view given) {
  const std::uint64_t bytes = parse_count(given);
  if (bytes >= DeviceWorkspace::kLeastPerRank) return bytes;
  const std::string form =
      "a whole number, at least " + std::to_string(DeviceWorkspace::kLeastPerRank);
  throw Unreadable{"so few bytes hold no rank's part", "Write " + form + ", or none", form};
}

std::string parse_ipc_arrays(std::string_view given) {
  const std::string word = lower(stripped(given));
  if (word != "all" && word != kOwnArrays) refuse("all or own");
  return word;
}

KnobValue parse_profile(std::string_view text) {
  if (const std::optional<bool> flag = flag_in(text)) {
    return *flag ? KnobValue(std::string(kProfileTable)) : KnobValue();
  }
  return unless_unset(text, stripped);
}

KnobValue parse_deterministic(std::string_view text) {
  if (const std::optional<bool> flag = flag_in(text)) return *flag;
  const std::string word = lower(stripped(text));
  if (word != kAnySize && word != kAnyRanks) refuse("1, 0, size or ranks");
  return word;
}

std::string seconds_as_written(double seconds) {
  std::array<char, 1100> text{};  // long enough for the smallest double
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), seconds, std::chars_format::fixed);
  return std::string(text.data(), end) + "s";
}

std::uint64_t in_nanoseconds(double seconds) {
  return static_cast<std::uint64_t>(1e9 * std::clamp(seconds, 0.0, 1e10));
}

}  // namespace gradred
