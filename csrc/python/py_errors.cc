#include "python/py_errors.h"

#include <pybind11/pybind11.h>

#include <string>

#include "base/errors.h"
#include "base/failure.h"
#include "base/signature.h"
#include "liveness/status_page.h"
#include "python/gil.h"

namespace gradred {
namespace {

// The error's text and the path of a report. A time limit is over, and Python code writes a file
// with the state of all ranks of this host.
std::string with_hang_report(const TimeoutError& error) noexcept {
  const char* const text = error.what();
  PyObject* const met = dynamic_cast<const FailedBefore*>(&error) != nullptr ? Py_False : Py_True;
  PyObject* const report = python_errors().on_timeout;
  PyObject* path = nullptr;
  if (report != nullptr) {
    call_python([&] {
      path = PyObject_CallFunction(report, "sOK", text, met,
                                   static_cast<unsigned long long>(error.id()));
    });
  }
  const char* name = path != nullptr && path != Py_None ? PyUnicode_AsUTF8(path) : nullptr;
  std::string whole = text;
  if (dynamic_cast<const WaitTimeout*>(&error) == nullptr) {
    whole += ". GRADRED_TIMEOUT sets the limit";
  }
  if (name != nullptr) whole += ". Where each rank is: " + std::string(name);
  Py_XDECREF(path);
  PyErr_Clear();  // the time limit is the error to report
  return whole;
}

constexpr const char* kShrink =
    ". Save what is worth it and end, or go on with the ranks that live: comm.shrink()";
constexpr const char* kRemake =
    ". Calls on its communicator go on if all ranks live: free the request, and make a new one by "
    "Allreduce_init. Otherwise go on with the ranks that live: comm.shrink()";
constexpr const char* kRemakeOrRestart =
    ". Calls on its communicator go on if all ranks live: free the request, and make a new one by "
    "Allreduce_init. Otherwise start the job again, from a checkpoint if there is one";
constexpr const char* kRestart =
    ". Save what is worth it and end, and start the job again, from a checkpoint if there is one";

const char* remedy_of(const PeerLost& error) {
  const auto* const again = dynamic_cast<const FailedBefore*>(&error);
  if (again != nullptr && again->carries == RankNames::Carries::kPersistent) {
    return error.may_shrink() ? kRemake : kRemakeOrRestart;
  }
  return error.may_shrink() ? kShrink : kRestart;
}

// For an error that has made a communicator fail. Texts of other errors name a remedy themselves.
std::string with_remedy(const char* text) {
  return std::string(text) + (process_poisoned.load(std::memory_order_relaxed) ? kRestart : "");
}

// Sets an error that `make` makes of gradred.errors, which imports no other module of gradred. So
// this extension may import it.
template <class Make>
void raise_made(const char* text, Make make) noexcept {
  call_python([&] {
    PyObject* const errors = PyImport_ImportModule("gradred.errors");
    PyObject* const message = PyUnicode_DecodeFSDefault(text);  // it may contain a path
    PyObject* const made =
        errors != nullptr && message != nullptr ? make(errors, message) : nullptr;
    if (made != nullptr) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made)), made);
    Py_XDECREF(made);
    Py_XDECREF(message);
    Py_XDECREF(errors);
  });
}

void raise(const char* name, const char* text) noexcept {
  raise_made(text, [name](PyObject* errors, PyObject* message) {
    return PyObject_CallMethod(errors, name, "O", message);
  });
}

// If the ranks' calls differ, the error shows `passed`, this rank's arguments.
void raise(const UsageError& error, PyObject* passed) noexcept {
  raise_made(error.what(), [&](PyObject* errors, PyObject* message) {
    PyObject* const disagreement = python_errors().disagreement;
    if (disagreement != nullptr && is_disagreement(error.what())) {
      PyObject* const made = PyObject_CallFunctionObjArgs(
          disagreement, message, passed != nullptr ? passed : Py_None, nullptr);
      if (made != nullptr) return made;
      PyErr_Clear();  // the disagreement is the error to report
    }
    const char* const mpi_class = error.mpi_class();
    return mpi_class != nullptr
               ? PyObject_CallMethod(errors, "usage_error", "Os", message, mpi_class)
               : PyObject_CallMethod(errors, "UsageError", "O", message);
  });
}

}  // namespace

PythonErrors& python_errors() {
  static PythonErrors functions;
  return functions;
}

void set_python_error(std::exception_ptr thrown, PyObject* passed) noexcept {
  try {
    std::rethrow_exception(thrown);
  } catch (const PythonError&) {  // it is already set
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const UsageError& error) {
    raise(error, passed);
  } catch (const TimeoutError& error) {
    raise("TimeoutError", with_hang_report(error).c_str());
    clear_wait();
  } catch (const PeerLost& error) {
    raise("PeerLost", (error.what() + std::string(remedy_of(error))).c_str());
  } catch (const TransportError& error) {
    raise("TransportError", with_remedy(error.what()).c_str());
  } catch (const DeviceError& error) {
    raise("DeviceError", error.what());
  } catch (const Error& error) {
    raise("Error", error.what());
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError,
                    "there is no memory for what the operation needs. Free arrays that are needed "
                    "no more, or run fewer ranks on this host");
  } catch (const std::exception& error) {
    raise("Error", error.what());
  }
}

void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const PythonError&) {
  } catch (const Error&) {
    set_python_error(thrown);
  } catch (const std::bad_alloc&) {
    set_python_error(thrown);
  }
}

}  // namespace gradred
