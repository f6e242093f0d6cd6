// The status that ranks publish for other processes of the same user.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/clock.h"
#include "liveness/shown_ranks.h"
#include "liveness/status_page.h"

namespace py = pybind11;

namespace gradred {
namespace {

py::dict dict_of(const ShownWait& shown) {
  const WaitRecord& wait = shown.wait;
  const bool numbered =
      wait.state == WaitRecord::State::kOnNode || wait.state == WaitRecord::State::kOverMessages;
  py::list missing;
  for (std::size_t rank = 0; rank < WaitRecord::kMostRanks; ++rank) {
    if ((wait.missing[rank / 64] >> rank % 64 & 1) != 0) missing.append(rank);
  }
  py::dict found;
  found["since_ns"] = shown.since_ns;
  found["state"] = WaitRecord::name_of(wait.state);
  found["operation"] = numbered ? py::object(py::int_(wait.operation)) : py::none();
  found["what"] = wait.what;
  found["missing"] = missing;
  found["waits_for"] = py::bytes(shown.waits_for).attr("decode")("utf-8", "replace");
  return found;
}

// Reads the wait in a copy of a rank's status page.
py::object wait_in(const py::bytes& page) {
  const auto bytes = static_cast<std::string_view>(page);
  if (bytes.size() < sizeof(StatusPage)) throw py::value_error("it is shorter than a status page");
  StatusPage copy;
  std::memcpy(&copy, bytes.data(), sizeof copy);
  ShownWait shown;
  if (!read_wait(copy, shown) || shown.since_ns == 0) return py::none();
  return dict_of(shown);
}

py::tuple last_begun_in(const py::bytes& page) {
  const auto bytes = static_cast<std::string_view>(page);
  LastBegun last;
  if (bytes.size() < sizeof last) throw py::value_error("it is shorter than a status page");
  std::memcpy(&last, bytes.data(), sizeof last);
  if (last.operation == 0) return py::make_tuple(py::none(), false, last.what);
  const std::uint64_t number = (last.operation & ~LastBegun::kOverMessages) - 1;
  return py::make_tuple(number, (last.operation & LastBegun::kOverMessages) != 0, last.what);
}

std::uint64_t lost_wake_ups_in(const py::bytes& page) {
  const auto bytes = static_cast<std::string_view>(page);
  if (bytes.size() < sizeof(StatusPage)) throw py::value_error("it is shorter than a status page");
  std::uint64_t lost = 0;
  std::memcpy(&lost, bytes.data() + offsetof(StatusPage, lost_wake_ups), sizeof lost);
  return lost;
}

bool main_thread_has_ended_in(const py::bytes& page) {
  const auto bytes = static_cast<std::string_view>(page);
  if (bytes.size() < sizeof(StatusPage)) throw py::value_error("it is shorter than a status page");
  std::uint64_t ended = 0;
  std::memcpy(&ended, bytes.data() + offsetof(StatusPage, main_thread_has_ended), sizeof ended);
  return ended != 0;
}

// Name and size of a call. Both are empty if the call's arguments were refused, or if only MPI or
// another version of gradred knows them.
py::tuple name_and_bytes(std::uint64_t what) {
  const Signature signature{.what = what};
  const SignatureFields fields(signature);
  const bool known_kind = fields.kind < kKinds.size();
  if (!known_kind || fields.is(Kind::kAborted)) return py::make_tuple("", py::none());
  if (!fields.is(Kind::kLeftToMpi)) {
    return py::make_tuple(name_of(static_cast<Kind>(fields.kind)), bytes_of(signature));
  }
  const bool known = fields.count < kCalledKinds;
  return py::make_tuple(known ? name_of(static_cast<Kind>(fields.count)) : "", py::none());
}

}  // namespace

void bind_liveness(py::module_& m) {
  m.def(
      "describe_call", [](std::uint64_t what) { return describe_with_bytes({.what = what}); },
      py::arg("what"),
      "Return a call in words, from the number that says it in announcements and status files.");
  m.def("take_clock_steps_from", &take_clock_steps_from, py::arg("path"),
        "Add to the clock what the file holds, for tests: csrc/base/clock.h.");
  m.def("now_ns", &now_ns, "Return the time of the clock by which waits end.");
  m.def("name_and_bytes", &name_and_bytes, py::arg("what"));
  m.attr("STATUS_PAGE") = py::make_tuple(StatusPage::kOffset, sizeof(StatusPage));
  m.def("wait_in", &wait_in, py::arg("page"));
  m.def("last_begun_in", &last_begun_in, py::arg("page"));
  m.def("lost_wake_ups_in", &lost_wake_ups_in, py::arg("page"));
  m.def("main_thread_has_ended_in", &main_thread_has_ended_in, py::arg("page"));
  m.def("post_end_of_main_thread", &post_end_of_main_thread,
        "Show other processes that only other threads of this process go on.");
  m.def(
      "shown_ranks",
      [] {
        py::list ranks;
        for (const auto& [about, file] : shown_ranks()) {
          ranks.append(py::make_tuple(about.pid, about.rank, about.size, file));
        }
        return ranks;
      },
      "Return process, rank in COMM_WORLD, its size, and the descriptor of its status file: of "
      "each rank "
      "of "
      "this user on this host.");
  m.def(
      "shows_rank", [] { return shown_by_this_process().has_value(); },
      "Return whether this process shows its rank to others.");
  m.def("launcher_of", &launcher_of, py::arg("pid"), py::kw_only(), py::arg("nearest") = false,
        "Return the outermost launcher above a process, or the nearest; 0: none.");
}

}  // namespace gradred
