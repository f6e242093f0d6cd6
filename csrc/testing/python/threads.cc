// run_threads: runs a collective operation with one thread per rank.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "python/gil.h"
#include "python/names.h"
#include "testing/on_threads.h"
#include "testing/python/module.h"

namespace gradred {
namespace {

namespace py = pybind11;

// Memory of a Python object, kept alive as long as this object.
class HeldBuffer {
 public:
  HeldBuffer(const py::handle& object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  ~HeldBuffer() { PyBuffer_Release(&view_); }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

  Buffer of(DType dtype) const {
    const auto bytes = static_cast<std::size_t>(view_.len);
    if (bytes % size_of(dtype) != 0) {
      throw UsageError("an input of " + std::to_string(bytes) + " bytes holds no whole number of " +
                       std::string(name_of(dtype)) + " elements");
    }
    return {static_cast<std::byte*>(view_.buf), bytes, {}};
  }

 private:
  Py_buffer view_{};
};

std::chrono::duration<double> seconds(double timeout) {
  if (!(timeout >= 0 && timeout <= 1e6)) {  // also refuses NaN
    throw UsageError("the timeout must be a number of seconds from 0 to 1000000");
  }
  return std::chrono::duration<double>(timeout);
}

struct Options {
  std::string dtype;
  std::string op;
  std::size_t slices;
  bool rendezvous;
  std::string fault;
  std::string trace;
  double timeout;
};

void run(const std::vector<const Schedule*>& schedules, const py::list& work,
         const py::list& inputs, const Options& options) {
  const DType dtype = dtype_named(options.dtype);
  ThreadsRun run;
  run.schedules = schedules;
  run.dtype = dtype;
  run.op = op_named(options.op);
  run.slices = options.slices;
  run.protocol = options.rendezvous ? Protocol::kRendezvous : Protocol::kEager;
  if (!options.fault.empty()) run.fault = parse_fault(options.fault);
  run.trace = options.trace;
  run.timeout = seconds(options.timeout);

  std::deque<HeldBuffer> held;
  for (const py::handle buffer : work) {
    held.emplace_back(buffer, PyBUF_CONTIG);
    run.buffers.push_back(held.back().of(dtype));
  }
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    held.emplace_back(inputs[rank], PyBUF_CONTIG_RO);
    const Buffer input = held.back().of(dtype);
    if (rank < run.buffers.size() && input.bytes != run.buffers[rank].bytes) {
      const std::size_t element = size_of(dtype);
      throw UsageError("the input of rank " + std::to_string(rank) + " has " +
                       std::to_string(input.bytes / element) + " elements, its result " +
                       std::to_string(run.buffers[rank].bytes / element));
    }
    run.inputs.push_back(input.address);
  }
  const WithoutGil release;
  run_on_threads(run);
}

constexpr const char* kDoc = R"(Run one collective operation with one thread per rank.

Args:
    schedules: One schedule per rank, in order.
    work: One writable, C-contiguous buffer per rank; holds the result afterwards, and the input
        before where the schedules are in place.
    dtype: Name of the element type; the buffers' own formats are not looked at.
    op: Name of the op. "avg" and "premul" only combine; scaling is the caller's.
    slices: Parts of the vector that are in flight together.
    rendezvous: Whether a send completes only when it has been received.
    fault: "rank:operation:round:kind[:milliseconds]" (kinds drop, delay, corrupt, die, stop, fail;
        "*" for any), or nothing.
    trace: Path of the Chrome traces, one per rank; "{rank}" is filled in.
    timeout: Seconds until TimeoutError.
    inputs: For schedules that read an input buffer: one per rank.

Blocks without the GIL until all ranks have finished. A failure is raised as the kind of error that
came first, with one line per failed rank: "rank 2: PeerLost: ...".)";

}  // namespace

void bind_threads(py::module_& m) {
  m.def(
      "run_threads",
      [](const std::vector<const Schedule*>& schedules, const py::list& work,
         const std::string& dtype, const std::string& op, std::size_t slices, bool rendezvous,
         const std::string& fault, const std::string& trace, double timeout,
         const py::list& inputs) {
        run(schedules, work, inputs, {dtype, op, slices, rendezvous, fault, trace, timeout});
      },
      py::arg("schedules"), py::arg("work"), py::arg("dtype"), py::arg("op"), py::arg("slices") = 1,
      py::arg("rendezvous") = true, py::arg("fault") = "", py::arg("trace") = "",
      py::arg("timeout") = 60.0, py::arg("inputs") = py::list(), kDoc);
}

}  // namespace gradred
