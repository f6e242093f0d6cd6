// The profile as Python objects: src/gradred/_profile.py makes the table and the file of them.
#include "comm/profile.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/clock.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "comm/observation.h"

namespace py = pybind11;

namespace gradred {
namespace {

double in_seconds(double nanoseconds) { return 1e-9 * nanoseconds; }
double in_seconds(std::uint64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

py::dict row_of(const ProfileKey& key, const ProfileTotals::Row& row) {
  const ProfileCounts& counts = row.counts;
  py::list ranks;
  for (const auto& [rank, late] : row.lateness) {
    ranks.append(py::make_tuple(rank, in_seconds(late.ns), late.last));
  }
  const bool blocks = key.mode == Mode::kBlocking || key.mode == Mode::kPersistentCall;
  const double time_ns = counts.time_ns();
  py::dict result;
  result["kind"] = std::string(name_of(key.kind));
  result["op"] = std::string(name_of(key.op));
  result["dtype"] = std::string(name_of(key.dtype));
  result["mode"] = text_of(key.mode);
  result["max_bytes"] = std::uint64_t{1} << key.size_class;
  result["calls"] = counts.calls;
  result["bytes"] = counts.bytes;
  result["timed_calls"] = counts.early_calls + counts.timed_calls;
  result["time_s"] = in_seconds(time_ns);
  result["exposed_s"] = blocks ? in_seconds(time_ns) : in_seconds(counts.exposed_ns);
  result["looks"] = counts.looks;
  result["skew_s"] = in_seconds(counts.skew_ns);
  result["longest_skew_s"] = in_seconds(counts.longest_skew_ns);
  result["ranks"] = ranks;
  result["compared"] = counts.compared;
  result["own_s"] = in_seconds(counts.own_ns);
  result["mpi_s"] = in_seconds(counts.mpi_ns);
  result["comparing_s"] = in_seconds(counts.comparing_ns);
  return result;
}

py::dict profile() {
  const ProfileTotals totals = profile_totals();
  py::list rows;
  for (const auto& [key, row] : totals.rows) {
    if (row.counts.calls > 0) rows.append(row_of(key, row));
  }
  py::dict result;
  result["rank"] = totals.rank;
  result["size"] = totals.size;
  result["wall_s"] = totals.since_ns == 0 ? 0.0 : in_seconds(now_ns() - totals.since_ns);
  result["set_ups"] = totals.set_ups;
  result["set_up_s"] = in_seconds(totals.set_up_ns);
  result["rows"] = rows;
  return result;
}

}  // namespace

void bind_profile(py::module_& m) {
  m.def("profile", &profile,
        "What the calls of this process have cost so far, on communicators with a profile.");
  m.def("path_of_rank", &trace_path, py::arg("path"), py::arg("rank"),
        "A file for each rank: `{rank}` filled in, or the number before the suffix.");
}

}  // namespace gradred
