// Merges the counters into rows. Calls and starts of persistent operations are separate rows in the
// counters and one row here.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/clock.h"
#include "observe/observation.h"
#include "observe/reports/profile_report.h"

namespace gradred {
namespace {

using Row = ProfileRecord::Row;
using Counted = std::pair<ProfileKey, const ProfileTotals::Row*>;

double in_seconds(double nanoseconds) { return 1e-9 * nanoseconds; }
double in_seconds(std::uint64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

bool blocks(Mode mode) { return mode == Mode::kBlocking || mode == Mode::kPersistentCall; }

std::optional<ProfileRecord::Skew> skew_of(const std::vector<Counted>& rows) {
  ProfileRecord::Skew skew;
  std::map<int, Lateness> late;
  double total_s = 0;
  for (const auto& [key, row] : rows) {
    skew.samples += row->counts.looks;
    total_s += in_seconds(row->counts.skew_ns);
    for (const auto& [rank, one] : row->lateness) {
      late[rank].ns += one.ns;
      late[rank].last += one.last;
    }
  }
  if (skew.samples == 0) return std::nullopt;
  const auto samples = static_cast<double>(skew.samples);
  skew.mean_s = total_s / samples;
  std::uint64_t most = 0;
  for (const auto& [rank, one] : late) {
    skew.ranks.push_back({rank, in_seconds(one.ns) / samples, one.last});
    if (skew.ranks.size() == 1 || one.ns > most) skew.slowest_rank = rank, most = one.ns;
  }
  return skew;
}

std::vector<Row::Way> ways_of(const std::vector<Counted>& rows) {
  ProfileCounts all;
  for (const auto& [key, row] : rows) all.add(row->counts);
  std::vector<Row::Way> ways;
  for (std::size_t way = 0; way < kUsedTransports; ++way) {
    for (const bool copied : {false, true}) {
      const std::uint64_t calls = all.transports[way][copied ? 1 : 0];
      if (calls > 0) ways.push_back({name_of(static_cast<UsedTransport>(way), copied), calls});
    }
  }
  std::ranges::stable_sort(ways, std::ranges::greater(), &Row::Way::calls);
  return ways;
}

Row merged(const std::vector<Counted>& rows) {
  const ProfileKey& key = rows.front().first;
  Row made{.kind = std::string(name_of(key.kind)),
           .op = reduces(key.kind) ? std::string(name_of(key.op)) : "",
           .dtype = std::string(name_of(key.dtype)),
           .mode = text_of(key.mode),
           .max_bytes = std::uint64_t{1} << key.size_class};
  for (const auto& [each, row] : rows) {
    const ProfileCounts& counts = row->counts;
    const double time_s = in_seconds(counts.time_ns());
    made.calls += counts.calls;
    made.bytes += counts.bytes;
    made.bus_bytes += row->bus_bytes;
    made.timed_calls += counts.early_calls + counts.timed_calls;
    made.time_s += time_s;
    made.exposed_s += blocks(each.mode) ? time_s : in_seconds(counts.exposed_ns);
    for (std::size_t i = 0; i < kWaitCauses; ++i) made.waits_s[i] += in_seconds(counts.waits[i]);
  }
  made.ways = ways_of(rows);
  made.skew = skew_of(rows);
  return made;
}

}  // namespace

ProfileRecord record_of(const ProfileTotals& totals, double wall_s) {
  using Name = std::tuple<Kind, Op, DType, std::string, std::uint8_t>;
  std::map<Name, std::vector<Counted>> groups;
  for (const auto& [key, row] : totals.rows) {
    if (row.counts.calls == 0) continue;
    groups[{key.kind, key.op, key.dtype, text_of(key.mode), key.size_class}].emplace_back(key,
                                                                                          &row);
  }
  ProfileRecord record{.rank = totals.rank,
                       .size = totals.size,
                       .wall_s = wall_s,
                       .exposed_s = in_seconds(totals.set_up_ns),
                       .set_up_communicators = totals.set_ups,
                       .set_up_s = in_seconds(totals.set_up_ns)};
  for (const auto& [name, rows] : groups) record.rows.push_back(merged(rows));
  std::ranges::stable_sort(record.rows, std::ranges::greater(),
                           [](const Row& row) { return std::pair(row.exposed_s, row.time_s); });
  for (const Row& row : record.rows) record.exposed_s += row.exposed_s;
  record.share = wall_s > 0 ? record.exposed_s / wall_s : 0;
  return record;
}

ProfileRecord profile_so_far() {
  const ProfileTotals totals = profile_totals();
  const double wall_s = totals.since_ns == 0 ? 0 : in_seconds(now_ns() - totals.since_ns);
  ProfileRecord record = record_of(totals, wall_s);
  record.driver_calls = driver_call_sums();
  record.sleeps = Sleep::counts();
  return record;
}

}  // namespace gradred
