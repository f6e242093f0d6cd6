// The profile's record and table: how rows are merged, described, rounded and written.
#include "observe/reports/profile_report.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "expect.h"

namespace gradred::testing {
namespace {

bool near(double value, double expected) { return std::abs(value - expected) < 1e-6; }

constexpr std::uint64_t kSecond = 1'000'000'000;

ProfileKey key(Mode mode = Mode::kBlocking, Kind kind = Kind::kAllreduce,
               std::uint8_t size_class = 10, DType dtype = DType::kFloat32) {
  return {kind, Op::kSum, dtype, mode, size_class};
}

// A hundred calls of 20 ms. One call starts every 10 ms.
ProfileTotals::Row counted(std::uint64_t exposed_ns = 2 * kSecond) {
  ProfileTotals::Row row;
  row.counts.calls = 100;
  row.counts.bytes = 100'000;
  row.counts.timed_calls = 100;
  row.counts.timed_ns = 2 * kSecond;
  row.counts.exposed_ns = exposed_ns;
  row.counts.looks = 10;
  row.counts.skew_ns = kSecond / 10;
  row.lateness = {{0, {kSecond / 100, 2}}, {1, {9 * kSecond / 100, 8}}};
  return row;
}

ProfileRecord record(std::map<ProfileKey, ProfileTotals::Row> rows, double wall_s = 10) {
  ProfileTotals totals;
  totals.size = 2;
  totals.set_ups = 1;
  totals.set_up_ns = kSecond / 2;
  totals.rows = std::move(rows);
  return record_of(totals, wall_s);
}

void share_is_what_is_exposed_with_set_up_of_the_wall_time() {
  const auto found = record({{key(), counted()}, {key(Mode::kStarted), counted(kSecond)}});
  expect(near(found.exposed_s, 3.5) && near(found.share, 0.35), "the share of what is exposed");
  expect(record({}, 0).share == 0, "no time, no share");
}

void call_and_start_of_persistent_operations_are_one_row() {
  const auto found = record({{key(Mode::kPersistentCall), counted()},
                             {key(Mode::kPersistentStarted), counted(kSecond / 2)}});
  expect(found.rows.size() == 1, "one row");
  const ProfileRecord::Row& row = found.rows.front();
  expect(row.mode == "persistent" && row.calls == 200, "all calls");
  expect(near(row.time_s, 4) && near(row.exposed_s, 2.5), "their times");
  expect(row.skew->samples == 20 && near(row.skew->mean_s, 0.01), "their skew");
}

void rows_come_most_exposed_first() {
  const auto found = record({{key(Mode::kStarted, Kind::kAllreduce, 3), counted(3 * kSecond)},
                             {key(Mode::kStarted), counted(kSecond)}});
  expect(found.rows[0].max_bytes == 8 && found.rows[1].max_bytes == 1024, "the order of rows");
}

void slowest_rank_is_the_one_with_the_most_lateness() {
  auto row = counted();
  row.lateness = {{0, {9 * kSecond / 10, 1}}, {5, {kSecond / 10, 9}}};
  const auto skew = record({{key(), row}}).rows[0].skew;
  expect(skew->slowest_rank == 0 && near(skew->ranks[0].mean_late_s, 0.09), "the slowest rank");
  row.counts.looks = 0;
  expect(!record({{key(), row}}).rows[0].skew, "no looks, no skew");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void table_has_a_line_per_row_of_at_most_100_columns_and_ends_with_the_share() {
  auto widest = counted();
  widest.counts.calls = 10'000'000;
  const auto lines =
      lines_of(table_of(record({{key(), counted()},
                                {key(Mode::kStarted, Kind::kReduceScatterBlock, 29), widest},
                                {key(Mode::kBlocking, Kind::kBcast, 4), counted()}})));
  for (const std::string& line : lines) expect(line.size() <= 100, "width of '" + line + "'");
  expect(lines[0] == "gradred profile of rank 0 of 2, 10 s since its first call", lines[0]);
  std::string words;
  bool has_bcast = false;
  for (const std::string& line : lines) {
    std::istringstream in(line);
    std::string joined;
    for (std::string word; in >> word;) joined += word + " ";
    if (line.starts_with("allreduce")) words = joined;
    has_bcast = has_bcast || line.starts_with("bcast float32 ");
  }
  expect(words == "allreduce sum float32 1 KiB 100 97.7 KiB 2 s 2 s 10 ms 1 80% ", words);
  expect(has_bcast, "a call that only moves has no operation");
  expect(lines.back().find(" % of the time since the first call went into gradred, not hidden") !=
             std::string::npos,
         lines.back());
}

void columns_without_figures_are_left_out() {
  const auto has = [](const std::string& text, const std::string& word) {
    return text.find(word) != std::string::npos;
  };
  auto blocking = counted(), started = counted();
  blocking.counts.looks = 0;
  blocking.counts.transports[static_cast<std::size_t>(UsedTransport::kSlots)][0] = 100;
  std::string text = table_of(record({{key(), blocking}}));
  expect(!has(text, "skew slowest\n"), text);
  expect(has(text, "way\n") && !has(text, "peers"), text);

  started.counts.transports[static_cast<std::size_t>(UsedTransport::kSlots)][0] = 100;
  started.counts.waits[static_cast<std::size_t>(WaitCause::kPeers)] = kSecond;
  text = table_of(record({{key(), blocking}, {key(Mode::kStarted), started}}));
  expect(has(text, "skew slowest\n") && has(text, "way peers\n"), text);
  expect(!has(text, "stream") && !has(text, "unseen"), text);
  for (const std::string& line : lines_of(text)) expect(line.size() <= 100, "width of " + line);
}

void table_shows_the_most_exposed_rows_and_counts_the_others() {
  std::map<ProfileKey, ProfileTotals::Row> rows;
  for (std::uint8_t size = 0; size < 40; ++size) {
    rows[key(Mode::kStarted, Kind::kAllreduce, size)] = counted((size + 1) * kSecond);
  }
  const auto lines = lines_of(table_of(record(std::move(rows))));
  expect(lines[2].find("512 GiB") != std::string::npos, lines[2]);
  expect(lines[32] == "and 10 rows of less: GRADRED_PROFILE=FILE writes them all", lines[32]);
  expect(table_of(record({})).ends_with("no call has ended\n"), "a table without calls");
}

void times_and_sizes_have_three_digits_and_a_unit() {
  for (const auto& [value, text] :
       std::vector<std::pair<double, std::string>>{{0, "0 ns"},
                                                   {3.2e-9, "3 ns"},
                                                   {9.996e-7, "1 us"},
                                                   {1.234e-6, "1.23 us"},
                                                   {9.994e-5, "99.9 us"},
                                                   {1e-4, "100 us"},
                                                   {9.996e-4, "1 ms"},
                                                   {0.5, "500 ms"},
                                                   {0.99996, "1 s"},
                                                   {12.34, "12.3 s"},
                                                   {4321.0, "4321 s"}}) {
    expect(seconds_text_of(value) == text, text + ": " + seconds_text_of(value));
  }
  for (const auto& [value, text] :
       std::vector<std::pair<std::uint64_t, std::string>>{{0, "0 B"},
                                                          {1023, "1023 B"},
                                                          {1024, "1 KiB"},
                                                          {1536, "1.5 KiB"},
                                                          {1023 * 1024, "1 MiB"},
                                                          {100ULL << 30, "100 GiB"},
                                                          {1ULL << 62, "4096 PiB"}}) {
    expect(size_text_of(value) == text, text + ": " + size_text_of(value));
  }
}

void json_is_what_it_should_be() {
  Json list = Json::list();
  list.add("a \"b\"\\\n").add(0.1).add(-3).add(Json());
  const std::string text = Json::object().put("x", list).put("y", Json::object()).text();
  expect(text == "{\"x\": [\n\"a \\\"b\\\"\\\\\\u000a\", \n0.1, \n-3, \nnull], \"y\": {}}", text);
  const std::string whole = json_of(record({{key(), counted()}}));
  expect(whole.starts_with("{\"schema\": \"gradred-profile/2\", \"rank\": 0, \"size\": 2, "),
         whole);
}

void file_that_cannot_be_written_keeps_nobody_waiting() {
  char folder[] = "/tmp/gradred-test-XXXXXX";
  expect(mkdtemp(folder) != nullptr, "there is a folder");
  const std::string pipe = std::string(folder) + "/pipe";
  mkfifo(pipe.c_str(), 0600);
  expect(write_file(pipe, "x") == ENXIO, "a pipe that nobody reads");
  expect(write_file(std::string(folder) + "/none/file", "x") == ENOENT, "no folder");
  expect(write_file(std::string(folder) + "/file", "x") == 0, "a file");
  unlink((std::string(folder) + "/file").c_str());
  unlink(pipe.c_str());
  rmdir(folder);
}

}  // namespace
}  // namespace gradred::testing

int main() {
  using namespace gradred::testing;
  share_is_what_is_exposed_with_set_up_of_the_wall_time();
  call_and_start_of_persistent_operations_are_one_row();
  rows_come_most_exposed_first();
  slowest_rank_is_the_one_with_the_most_lateness();
  table_has_a_line_per_row_of_at_most_100_columns_and_ends_with_the_share();
  columns_without_figures_are_left_out();
  table_shows_the_most_exposed_rows_and_counts_the_others();
  times_and_sizes_have_three_digits_and_a_unit();
  json_is_what_it_should_be();
  file_that_cannot_be_written_keeps_nobody_waiting();
  return gradred::testing::report("profile report");
}
