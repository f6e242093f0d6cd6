// Status pages in the form that ranks write, for tests of their readers.
#include "liveness/status_page.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "testing/python/module.h"

namespace gradred {

namespace py = pybind11;

namespace {

WaitRecord::State state_named(const std::string& name) {
  const auto found = std::ranges::find(WaitRecord::kStates, name);
  if (found == WaitRecord::kStates.end()) throw py::value_error("no such state: " + name);
  return static_cast<WaitRecord::State>(found - WaitRecord::kStates.begin());
}

py::bytes bytes_of_page(const StatusPage& page) {
  return {reinterpret_cast<const char*>(&page), sizeof page};
}

// `begun`: 1 plus the operation's number, with or without LastBegun::kOverMessages.
py::bytes status_page(std::uint64_t begun, std::uint64_t what) {
  const auto page = std::make_unique<StatusPage>();
  page->last = {begun, what};
  return bytes_of_page(*page);
}

py::bytes status_page_of_wait(const py::bytes& before, std::uint64_t since_ns,
                              const std::string& state, std::uint64_t operation, std::uint64_t what,
                              const std::vector<std::size_t>& missing,
                              const std::string& waits_for) {
  const auto text = static_cast<std::string_view>(before);
  if (text.size() != sizeof(StatusPage)) throw py::value_error("it is not a status page");
  const auto page = std::make_unique<StatusPage>();
  std::memcpy(page.get(), text.data(), sizeof *page);
  page->since_ns = since_ns;
  page->wait = {.state = state_named(state), .operation = operation, .what = what};
  for (const std::size_t rank : missing) page->wait.add_missing(rank);
  set_text(page->waits_for, waits_for);
  return bytes_of_page(*page);
}

}  // namespace

void bind_status_page(py::module_& m) {
  m.def("status_page", &status_page, py::arg("begun"), py::arg("what"),
        "The page of a rank that waits for nothing.");
  m.def("status_page_of_wait", &status_page_of_wait, py::arg("before"), py::kw_only(),
        py::arg("since_ns"), py::arg("state"), py::arg("operation"), py::arg("what"),
        py::arg("missing"), py::arg("waits_for"), "The same page of a rank that waits.");
}

}  // namespace gradred
