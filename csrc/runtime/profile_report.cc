#include "runtime/profile_report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <span>

#include "base/errors.h"
#include "base/files.h"
#include "base/json.h"
#include "base/trace.h"
#include "mpi/mpi.h"
#include "runtime/settings.h"
#include "runtime/version.h"  // made by CMake of src/gradred/__init__.py

namespace gradred {
namespace {

using Row = ProfileRecord::Row;

constexpr std::size_t kMostRows = 30;  // of the table
constexpr std::array kColumns = {"up to",   "calls", "data",    "time",
                                 "exposed", "skew",  "slowest", "by MPI"};
constexpr std::size_t kWidth = 100;  // of the legends

struct Explained {
  const char* column;
  const char* text;
};
constexpr auto kLegend = std::to_array<Explained>({
    {"time", "in calls, or from start to end"},
    {"exposed", "the part in which the program waited"},
    {"skew", "from the first rank's coming to the last's"},
    {"slowest", "the rank that was latest, and how often it was last"},
    {"by MPI", "the time had the MPI done it"},
});
constexpr auto kLegendOfWays = std::to_array<Explained>({
    {"way", "of the data"},
    {"line", "those before, the MPI, or nobody who goes on"},
    {"peers", "they had not come, or not done their part"},
    {"stream", "the program's work on the input"},
    {"device", "the call's own work there"},
    {"unseen", "what was there, and nobody looked, at most"},
    {"steps", "gradred's own code"},
});
constexpr const char* kStoodLegend =
    "after way: where the time of started calls went; -: other calls";

using Lines = std::vector<std::vector<std::string>>;  // of a table, the first one its head

template <class... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 400> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string three_digits(double value) {
  if (value >= 99.95) return formatted("%.0f", value);
  std::string text = formatted(value >= 9.995 ? "%.1f" : "%.2f", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// What was called, with the mode unless it is blocking.
std::string name_of_row(const Row& row) {
  std::string text = row.kind.substr(0, row.kind.rfind("_block"));
  if (!row.op.empty()) text += " " + row.op;
  text += " " + row.dtype;
  return row.mode == "blocking" ? text : text + ", " + row.mode;
}

std::string slowest(const ProfileRecord::Skew& skew) {
  const auto late = std::ranges::find(skew.ranks, skew.slowest_rank, &ProfileRecord::Late::rank);
  const double last = 100.0 * static_cast<double>(late->last) / static_cast<double>(skew.samples);
  return formatted("%d %.0f%%", skew.slowest_rank, last);
}

std::vector<std::string> cells_of(const Row& row) {
  return {name_of_row(row),
          size_text_of(row.max_bytes),
          std::to_string(row.calls),
          size_text_of(row.bytes),
          seconds_text_of(row.time_s),
          seconds_text_of(row.exposed_s),
          row.skew ? seconds_text_of(row.skew->mean_s) : "-",
          row.skew ? slowest(*row.skew) : "-",
          row.mpi ? seconds_text_of(row.mpi->total_s) : "-"};
}

std::string ways_of(const Row& row) {
  std::uint64_t all = 0;
  for (const auto& [name, calls] : row.ways) all += calls;
  std::string text;
  for (const auto& [name, calls] : row.ways) {
    const double share = 100.0 * static_cast<double>(calls) / static_cast<double>(all);
    text += (text.empty() ? "" : "; ") + std::string(name);
    if (row.ways.size() > 1) text += formatted(" %.0f%%", share);
  }
  return text;
}

// By which way each row went, and what started calls stood for meanwhile.
Lines lines_of_ways(const ProfileRecord& record, std::size_t shown) {
  Lines lines{{"call", "up to", "way"}};
  lines[0].insert(lines[0].end(), std::begin(kStoodNames), std::end(kStoodNames));
  for (std::size_t i = 0; i < shown; ++i) {
    const Row& row = record.rows[i];
    if (row.ways.empty()) continue;  // none was timed
    lines.push_back({name_of_row(row), size_text_of(row.max_bytes), ways_of(row)});
    for (const double seconds : row.stood_s) {
      lines.back().push_back(row.mode == "blocking" ? "-" : seconds_text_of(seconds));
    }
  }
  return lines;
}

std::string text_of(const std::vector<DriverCallSums>& calls) {
  std::string text;
  for (const DriverCallSums& one : calls) {
    if (one.slow_calls == 0) continue;
    text += formatted("%s took 1 ms and more %llu times of %llu: %s, the longest %s\n", one.name,
                      static_cast<unsigned long long>(one.slow_calls),
                      static_cast<unsigned long long>(one.calls),
                      seconds_text_of(1e-9 * static_cast<double>(one.slow_ns)).c_str(),
                      seconds_text_of(1e-9 * static_cast<double>(one.longest_ns)).c_str());
  }
  return text;
}

std::string text_of(const Sleep::Counts& sleeps) {
  if (sleeps.lost == 0) return "";
  return formatted(
      "%llu of %llu sleeps were not woken, and ended by their limit: please report this\n",
      static_cast<unsigned long long>(sleeps.lost), static_cast<unsigned long long>(sleeps.sleeps));
}

// Leaves out columns in which no line has more than one of `nothing`.
Lines with_figures(const Lines& lines, const std::vector<std::string>& nothing) {
  Lines left(lines.size());
  for (std::size_t column = 0; column < lines[0].size(); ++column) {
    const bool has_figures =
        std::any_of(lines.begin() + 1, lines.end(), [&](const std::vector<std::string>& line) {
          return std::ranges::find(nothing, line[column]) == nothing.end();
        });
    for (std::size_t i = 0; has_figures && i < lines.size(); ++i) {
      left[i].push_back(lines[i][column]);
    }
  }
  return left;
}

bool has_column(const Lines& lines, const std::string& name) {
  return std::ranges::find(lines[0], name) != lines[0].end();
}

// What the columns mean that are there, and `more`.
std::string legend_of(const Lines& lines, std::span<const Explained> legend,
                      const std::string& more) {
  std::string words;
  for (const auto& [column, meaning] : legend) {
    if (has_column(lines, column)) words += std::string(column) + ": " + meaning + "; ";
  }
  words += more;
  if (more.empty()) words.resize(words.size() - 2);
  std::string text;
  while (words.size() > kWidth) {
    const std::size_t end = words.rfind(' ', kWidth);
    text += words.substr(0, end) + "\n";
    words.erase(0, end + 1);
  }
  return text + words + "\n";
}

// What "-" means in the first table; empty where there is none.
std::string dash_of(const Lines& lines, const std::vector<Row>& rows, std::size_t shown) {
  const bool found = std::ranges::any_of(lines, [](const std::vector<std::string>& line) {
    return std::ranges::find(line, "-") != line.end();
  });
  if (!found) return "";
  const bool not_compared = has_column(lines, "by MPI") &&
                            std::ranges::any_of(std::span(rows).first(shown), [](const Row& row) {
                              return row.mode != "blocking";
                            });
  return std::string("-: too few calls") +
         (not_compared ? ", or, by MPI, calls that are not blocking" : "");
}

// The first column to the left, the others to the right.
std::string aligned(const Lines& lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : lines) {
    text += line[0] + std::string(widths[0] - line[0].size(), ' ');
    for (std::size_t i = 1; i < line.size(); ++i) {
      text += " " + std::string(widths[i] - line[i].size(), ' ') + line[i];
    }
    text += "\n";
  }
  return text;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S+00:00", &parts);
  return text.data();
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Json json_of_skew(const std::optional<ProfileRecord::Skew>& skew) {
  if (!skew) return Json();
  Json ranks = Json::list();
  for (const auto& [rank, mean_late_s, last] : skew->ranks) {
    ranks.add(Json::object().put("rank", rank).put("mean_late_s", mean_late_s).put("last", last));
  }
  return Json::object()
      .put("samples", skew->samples)
      .put("mean_s", skew->mean_s)
      .put("longest_s", skew->longest_s)
      .put("slowest_rank", skew->slowest_rank)
      .put("ranks", ranks);
}

Json json_of_mpi(const std::optional<ProfileRecord::ByMpi>& mpi) {
  if (!mpi) return Json();
  return Json::object()
      .put("samples", mpi->samples)
      .put("gradred_s", mpi->gradred_s)
      .put("mpi_s", mpi->mpi_s)
      .put("total_s", mpi->total_s)
      .put("sampling_s", mpi->sampling_s);
}

Json json_of(const DriverCallSums& one) {
  return Json::object()
      .put("name", one.name)
      .put("calls", one.calls)
      .put("seconds", 1e-9 * static_cast<double>(one.ns))
      .put("longest_s", 1e-9 * static_cast<double>(one.longest_ns))
      .put("slow_calls", one.slow_calls)
      .put("slow_s", 1e-9 * static_cast<double>(one.slow_ns));
}

Json json_of_row(const Row& row) {
  Json ways = Json::object(), stood = Json::object();
  for (const auto& [name, calls] : row.ways) ways.put(name, calls);
  for (std::size_t i = 0; i < kStoodSums; ++i) stood.put(kStoodNames[i], row.stood_s[i]);
  return Json::object()
      .put("kind", row.kind)
      .put("op", row.op.empty() ? Json() : Json(row.op))
      .put("dtype", row.dtype)
      .put("mode", row.mode)
      .put("max_bytes", row.max_bytes)
      .put("calls", row.calls)
      .put("bytes", row.bytes)
      .put("timed_calls", row.timed_calls)
      .put("time_s", row.time_s)
      .put("exposed_s", row.exposed_s)
      .put("ways", ways)
      .put("stood", stood)
      .put("skew", json_of_skew(row.skew))
      .put("mpi", json_of_mpi(row.mpi));
}

void write(const std::string& path, const ProfileRecord& record) {
  if (const int error = write_file(path, json_of(record)); error != 0) {
    throw UsageError("the profile '" + path + "': cannot be written (" + why_not_written(error) +
                     "). Name a file in a folder that exists and is writable.");
  }
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

std::string seconds_text_of(double seconds) {
  for (const auto& [factor, unit] : {std::pair(1.0, "s"), {1e-3, "ms"}, {1e-6, "us"}}) {
    if (seconds >= 0.9995 * factor) return three_digits(seconds / factor) + " " + unit;
  }
  return formatted("%.0f ns", seconds * 1e9);
}

std::string size_text_of(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double scaled = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; scaled >= 999.5 && unit + 1 < kUnits.size(); ++unit) scaled /= 1024;
  return three_digits(scaled) + " " + kUnits[unit];
}

std::string table_of(const ProfileRecord& record) {
  const std::string head =
      formatted("gradred profile of rank %d of %d, %s since its first call", record.rank,
                record.size, seconds_text_of(record.wall_s).c_str());
  if (record.rows.empty()) return head + ": no call has ended\n";
  Lines lines{{"call"}};
  lines[0].insert(lines[0].end(), kColumns.begin(), kColumns.end());
  const std::size_t shown = std::min(record.rows.size(), kMostRows);
  for (std::size_t i = 0; i < shown; ++i) lines.push_back(cells_of(record.rows[i]));
  lines = with_figures(lines, {"-"});
  std::string text = head + "\n" + aligned(lines);
  if (const std::size_t more = record.rows.size() - shown; more > 0) {
    text += formatted("and %zu rows of less: GRADRED_PROFILE=FILE writes them all\n", more);
  }
  text += legend_of(lines, kLegend, dash_of(lines, record.rows, shown));
  if (Lines ways = lines_of_ways(record, shown); ways.size() > 1) {
    ways = with_figures(ways, {"-", seconds_text_of(0)});
    const bool stood = ways[0].size() > 3;
    text += "\n" + aligned(ways) + legend_of(ways, kLegendOfWays, stood ? kStoodLegend : "");
  }
  return text + text_of(record.driver_calls) + text_of(record.sleeps) +
         formatted(
             "%.1f %% of the time since the first call went into gradred, not hidden "
             "(%s, %s of it set-up)\n",
             100 * record.share, seconds_text_of(record.exposed_s).c_str(),
             seconds_text_of(record.set_up_s).c_str());
}

std::string json_of(const ProfileRecord& record) {
  const std::string mpi = mpi::loaded() ? first_line(mpi::get().version()) : "";
  Json rows = Json::list();
  for (const Row& row : record.rows) rows.add(json_of_row(row));
  Json driver_calls = Json::list();
  for (const DriverCallSums& one : record.driver_calls) driver_calls.add(json_of(one));
  const Json whole = Json::object()
                         .put("schema", "gradred-profile/1")
                         .put("rank", record.rank)
                         .put("size", record.size)
                         .put("host", host_name())
                         .put("date", date())
                         .put("versions", Json::object().put("gradred", kVersion).put("mpi", mpi))
                         .put("wall_s", record.wall_s)
                         .put("exposed_s", record.exposed_s)
                         .put("share", record.share)
                         .put("set_up", Json::object()
                                            .put("communicators", record.set_up_communicators)
                                            .put("seconds", record.set_up_s))
                         .put("rows", rows)
                         .put("driver_calls", driver_calls)
                         .put("sleeps", Json::object()
                                            .put("for_words", record.sleeps.sleeps)
                                            .put("ended_by_limit", record.sleeps.ended_by_limit)
                                            .put("lost", record.sleeps.lost));
  return whole.text() + "\n";
}

void report_profile() {
  const std::optional<std::string> wanted = profile_wanted();
  const ProfileRecord record = profile_so_far();
  if (record.rows.empty() && !wanted) return;  // rank 0, which decides, has asked for none
  if (record.rank == 0) print(table_of(record));
  if (wanted && !wanted->empty()) write(trace_path(*wanted, record.rank), record);
}

}  // namespace gradred
