// The table of knobs for src/gradred/config.py, which shows and documents it.
#include "runtime/knobs.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "calls/settings.h"
#include "observe/reports/profile_report.h"
#include "runtime/environment.h"
#include "runtime/knob_values.h"
#include "runtime/rank_process.h"

namespace py = pybind11;

namespace gradred {
namespace {

// Variables may hold any bytes. Python decodes them as in os.environ.
py::str decoded(std::string_view bytes) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<py::ssize_t>(bytes.size())));
}

std::string encoded(const py::str& text) {
  const auto bytes = py::reinterpret_steal<py::bytes>(PyUnicode_EncodeFSDefault(text.ptr()));
  if (!bytes) throw py::error_already_set();
  return bytes;
}

py::object value_of(const KnobValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return decoded(*text);
  return py::cast(value);
}

// A dict from names to (value, source), in the order of the table.
py::dict knob_values() {
  py::dict found;
  for (const KnobState& state : knob_states()) {
    found[py::str(std::string(state.knob->name))] =
        py::make_tuple(value_of(state.value), std::string(name_of(state.source)));
  }
  return found;
}

py::list knob_table() {
  py::list rows;
  for (const Knob& knob : knobs()) {
    rows.append(py::make_tuple(std::string(knob.name), variable_of(knob),
                               shown(knob, knob.read(knob.initial)), std::string(knob.help)));
  }
  return rows;
}

py::str show_knob(const std::string& name, const py::object& value) {
  const Knob& knob = knob_named(name);
  if (py::isinstance<py::str>(value)) return decoded(encoded(value));
  return decoded(shown(knob, value.cast<KnobValue>()));
}

void check_variables(const py::dict& variables) {
  std::vector<std::pair<std::string, std::string>> given;
  for (const auto& [name, value] : variables) {
    given.emplace_back(encoded(py::str(name)), encoded(py::str(value)));
  }
  check_knobs(given);
}

double duration_in(const py::str& text) {
  try {
    return parse_duration(encoded(text));
  } catch (const Unreadable& why) {
    throw py::value_error(why.form);
  }
}

}  // namespace

void bind_knobs(py::module_& m) {
  m.def("knob_table", &knob_table, "Name, variable, default as text and help of each knob.");
  m.def("knob_values", &knob_values, "Each knob's value and source; reads the environment.");
  m.def("require_knob", [](const py::str& name) { knob_named(encoded(name)); }, py::arg("name"));
  m.def("show_knob", &show_knob, py::arg("name"), py::arg("value"));
  m.def("check_knobs", &check_variables, py::arg("variables"));
  m.def(
      "set_knob",
      [](const py::str& name, const py::str& text, const py::str& asked) {
        set_knob(encoded(name), encoded(text), encoded(asked));
      },
      py::arg("name"), py::arg("text"), py::arg("asked"));
  m.def("reset_knob", [](const py::str& name) { reset_knob(encoded(name)); }, py::arg("name"));
  m.def("reset_knobs", &reset_knobs);
  m.def("parse_duration", &duration_in, py::arg("text"));
  m.def(
      "begin_communicator",
      [] {
        begin_communicator();
        return py::make_tuple(settings().metrics, settings().by_leaves);
      },
      "Read the knobs, which hold for communicators that are used first from now on. Return where "
      "metrics are wanted (empty: nowhere), and whether sums of floats have to be those of "
      "leaves.");
  m.def(
      "profile_json", [] { return json_of(profile_so_far()); },
      "Return what the calls of this process have cost so far, on communicators with a profile: "
      "the "
      "record "
      "that GRADRED_PROFILE=FILE writes.");
  m.def(
      "path_of_rank",
      [](const py::str& path, int rank) { return decoded(trace_path(encoded(path), rank)); },
      py::arg("path"), py::arg("rank"));
  m.def("figures_folder", [] { return decoded(figures_folder()); });
}

}  // namespace gradred
