// The extension module _core_testing, which tests/core_testing.py imports. It exports parts of the
// core that only tests call. An editable install builds it into tests/; no wheel contains it.
#include "testing/python/module.h"

#include <exception>

#include "base/clock.h"
#include "base/errors.h"
#include "runtime/environment.h"

namespace py = pybind11;

namespace {

// Raises the exceptions of gradred.errors. gradred._core adds more to errors that end a
// communicator.
void translate(std::exception_ptr thrown) {
  const auto raise = [](const char* name, const std::exception& error) {
    py::set_error(py::module_::import("gradred.errors").attr(name), error.what());
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const gradred::UsageError& error) {
    raise("UsageError", error);
  } catch (const gradred::TimeoutError& error) {
    raise("TimeoutError", error);
  } catch (const gradred::PeerLost& error) {
    raise("PeerLost", error);
  } catch (const gradred::TransportError& error) {
    raise("TransportError", error);
  } catch (const gradred::Error& error) {
    raise("Error", error);
  }
}

}  // namespace

PYBIND11_MODULE(_core_testing, m) {
  py::module_::import("gradred._core");  // it defines the classes of schedules
  m.doc() = "What tests alone call of gradred's C++ core.";
  py::register_local_exception_translator(translate);
  gradred::bind_mutants(m);
  gradred::bind_reduce(m);
  gradred::bind_status_page(m);
  gradred::bind_threads(m);
  m.def("take_clock_steps_from", &gradred::take_clock_steps_from, py::arg("path"));
  m.def("now_ns", &gradred::now_ns, "The clock of this extension, which has a core of its own.");
  m.def("ranks_on_host", &gradred::ranks_on_host,
        "How many ranks the launcher's variables tell of; 0 if none does.");
}
