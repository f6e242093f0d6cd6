// The reduction functions of each instruction set, applied to Python buffers.
#include "reduce/reduce.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "base/errors.h"
#include "node/paths/helpers.h"
#include "python/names.h"
#include "python/raw_buffers.h"
#include "reduce/exact_sum.h"
#include "testing/python/module.h"

namespace gradred {
namespace {

namespace py = pybind11;

const ReduceFunctions& functions(const std::string& op, const std::string& dtype,
                                 const std::string& isa) {
  const ReduceFunctions* found = isa.empty()
                                     ? find_reduction(op_named(op), dtype_named(dtype))
                                     : find_reduction(op_named(op), dtype_named(dtype), isa);
  if (found == nullptr) {
    throw UsageError(op + " of " + dtype + " does not exist" +
                     (isa.empty() ? "" : " for " + isa + " on this processor"));
  }
  return *found;
}

void reduce_pair(const std::string& op, const std::string& dtype, const py::buffer& target,
                 const py::buffer& a, const py::buffer& b, const std::string& isa) {
  reduce_buffers(functions(op, dtype, isa), dtype_named(dtype), target, a, b);
}

void reduce_many(const std::string& op, const std::string& dtype, const py::buffer& target,
                 const std::vector<py::buffer>& inputs, const std::string& isa,
                 std::size_t threads) {
  const ReduceFunctions& found = functions(op, dtype, isa);
  const DType type = dtype_named(dtype);
  const py::buffer_info out = target.request(true);
  const std::size_t count = count_of(out, type);
  if (inputs.empty()) throw UsageError("reduce_many needs at least one input");
  std::vector<py::buffer_info> infos;
  std::vector<const void*> pointers;
  for (const py::buffer& input : inputs) {
    infos.push_back(input.request());
    require_count(infos.back(), type, count);
    pointers.push_back(infos.back().ptr);
  }
  const WithoutGil released;
  if (threads == 1) return found.many(out.ptr, pointers.data(), pointers.size(), count);
  const std::size_t element = size_of(type);
  Helpers::share(threads, [&](std::size_t index) {
    const auto [begin, length] = slice_of(count, threads, index);
    std::vector<const void*> slices;
    for (const void* input : pointers) {
      slices.push_back(static_cast<const std::byte*>(input) + begin * element);
    }
    found.many(static_cast<std::byte*>(out.ptr) + begin * element, slices.data(), slices.size(),
               length);
  });
}

void scale_buffer(const std::string& dtype, const py::buffer& data, double factor, bool divide) {
  const DType type = dtype_named(dtype);
  if (type == DType::kBool) throw UsageError("bool cannot be scaled");
  const py::buffer_info info = data.request(true);
  const std::size_t count = count_of(info, type);
  const WithoutGil released;
  scale(info.ptr, count, type, factor, divide);
}

py::bytes exact_words(const std::string& dtype, const py::buffer& data, const std::string& isa) {
  const DType type = dtype_named(dtype);
  const py::buffer_info info = data.request();
  ExactSum sum(type, isa);
  sum.add(info.ptr, count_of(info, type));
  const std::vector<std::int64_t> words = sum.words();
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]};
}

}  // namespace

void bind_reduce(py::module_& m) {
  m.def("reduce_pair", &reduce_pair, py::arg("op"), py::arg("dtype"), py::arg("target"),
        py::arg("a"), py::arg("b"), py::arg("isa") = "",
        "target = a op b on buffers of `dtype`; target may be a or b.");
  m.def("reduce_many", &reduce_many, py::arg("op"), py::arg("dtype"), py::arg("target"),
        py::arg("inputs"), py::arg("isa") = "", py::arg("threads") = 1,
        "target = inputs[0] op inputs[1] op ...; target may be one of them.");
  m.def("scale", &scale_buffer, py::arg("dtype"), py::arg("data"), py::arg("factor"),
        py::arg("divide") = false, "Multiply or divide data in place.");
  m.def("exact_words", &exact_words, py::arg("dtype"), py::arg("data"), py::arg("isa"),
        "The words of an exact sum.");
  m.def("isas", &isas, "The instruction sets that this processor and build have, best first.");
  m.def("best_isa", &best_isa, "The instruction set that reductions use by default.");
}

}  // namespace gradred
