// A named operation as Python holds it, and the way in for tensors that takes least time.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>

#include "coordinator/named.h"
#include "python/operation.h"

namespace gradred {

// An operation in flight, with what it works on.
class PyNamedRequest final : public PyOperation {
 public:
  // `memory`: what the operation works on, if that is not `held`.
  PyNamedRequest(std::shared_ptr<NamedOperation> named, pybind11::object held,
                 pybind11::object memory = {});
  ~PyNamedRequest();
  PyNamedRequest(const PyNamedRequest&) = delete;
  PyNamedRequest& operator=(const PyNamedRequest&) = delete;

  const NamedOperation& named() const { return *named_; }
  // Waits, and gives what the request has held.
  pybind11::object wait_for_held();

 private:
  std::shared_ptr<NamedOperation> named_;
  pybind11::object held_, memory_;
};

// How one tensor is to be reduced.
struct TensorReduction {
  Op op = Op::kSum;
  double prescale = 1.0, postscale = 1.0;
  int priority = 0;
};

// An allreduce of one tensor, whose request holds the result. Null: it takes a closer look.
std::shared_ptr<PyNamedRequest> submit_tensor(NamedOperations& all, std::string name,
                                              PyObject* input, PyObject* result,
                                              const TensorReduction& how);

// What Python numbers are in C++; they throw what Python has raised, and UsageError.
double number_of(PyObject* object);
int priority_of(PyObject* object);
std::string_view text_of(PyObject* object);

}  // namespace gradred
