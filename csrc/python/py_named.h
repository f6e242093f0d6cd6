// Named operations that Python code holds, and a fast path to submit one tensor.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "named/named.h"
#include "python/py_operation.h"

namespace gradred {

// A named operation in flight, which keeps alive the objects that it uses.
class PyNamedRequest final : public PyOperation {
 public:
  // `memory`: owner of the memory that the operation uses, if that is not `held`.
  PyNamedRequest(std::shared_ptr<NamedOperation> named, pybind11::object held,
                 pybind11::object memory = {});
  ~PyNamedRequest();
  PyNamedRequest(const PyNamedRequest&) = delete;
  PyNamedRequest& operator=(const PyNamedRequest&) = delete;

  const NamedOperation& named() const { return *named_; }
  // Waits for the end, and returns `held`.
  pybind11::object wait_for_held();
  // Waits for the end, or for so many seconds, which count for the next wait, too. That one throws
  // the operation's error. Does nothing for arrays on a device, which later work of streams
  // follows.
  void wait_in_submission(std::optional<double> seconds);
  void wait_at_most(std::optional<double> seconds);
  // Makes later work of a stream of the program wait for the results. Blocks until the device has
  // been given all work of the operation, which needs the peers to have submitted it. Returns false
  // if that is not possible: then the operation has ended. Throws its error, or WaitTimeout. If the
  // time is over later, all operations of the communicator end with TimeoutError, on all ranks.
  bool wait_in_stream(std::uint64_t stream, std::optional<double> timeout);

 private:
  std::shared_ptr<NamedOperation> named_;
  pybind11::object held_, memory_;
  std::uint64_t submission_waited_ns_ = 0;
};

// Calls a function. Operations in host memory that it submits have ended, or have lasted for so
// many seconds, when it gets their requests. So from the moment when a peer may read the input to
// the end, no Python code runs, and no signal handler could change what some of the ranks have
// read.
PyObject* call_with_waits(std::optional<double> seconds, PyObject* function, PyObject* const* given,
                          Py_ssize_t count, PyObject* names);

// What is done with one tensor.
struct TensorCall {
  NamedKind kind = NamedKind::kAllreduce;  // or kBroadcast, kAllgather, kReduceScatter
  Op op = Op::kSum;
  double prescale = 1.0, postscale = 1.0;
  int priority = 0;
  int root = 0;
};

// The number of an operation, of a counter in Python. `counter.taken` is it as soon as the
// operation is submitted, also where the handler of a signal raises right after.
struct CountedBy {
  PyObject* counter = nullptr;  // nullptr or None: it has no number
  PyObject* number = nullptr;

  void take() const;  // throws PythonError
};

// Submits an operation on one tensor, whose result goes to `result`, which the request holds.
// Returns nullptr if the Python path has to handle the tensors.
std::shared_ptr<PyNamedRequest> submit_tensor(NamedOperations& all, std::string name,
                                              PyObject* input, PyObject* result,
                                              const TensorCall& how, const CountedBy& counted = {});

// Convert Python objects to C++ values. They throw the Python error or UsageError.
double number_of(PyObject* object);
int priority_of(PyObject* object);
std::string_view text_of(PyObject* object);

}  // namespace gradred
