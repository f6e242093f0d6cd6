// The reduction functions on raw buffers, for tests: a buffer of any item type counts as bytes.
#include "reduce/reduce.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/types.h"
#include "python/gil.h"
#include "python/names.h"

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

std::size_t bytes_of(const py::buffer_info& info) {
  return static_cast<std::size_t>(info.size * info.itemsize);
}

// Elements in `target`; every input must have as many bytes and be contiguous like it.
std::size_t count_of(const py::buffer_info& info, DType dtype) {
  const std::size_t bytes = bytes_of(info);
  if (info.ndim != 1 || info.strides[0] != info.itemsize || bytes % size_of(dtype) != 0) {
    throw UsageError("expected contiguous bytes, whole elements of " + std::string(name_of(dtype)) +
                     ", in one dimension; got " + std::to_string(bytes) + " bytes");
  }
  return bytes / size_of(dtype);
}

void reduce_many(const std::string& op, const std::string& dtype, const py::buffer& target,
                 const std::vector<py::buffer>& inputs, const std::string& isa) {
  const ReduceFunctions& found = functions(op, dtype, isa);
  const py::buffer_info out = target.request(true);
  const std::size_t count = count_of(out, dtype_named(dtype));
  if (inputs.empty()) throw UsageError("reduce_many needs at least one input");
  std::vector<py::buffer_info> infos;
  std::vector<const void*> pointers;
  for (const py::buffer& input : inputs) {
    infos.push_back(input.request());
    if (count_of(infos.back(), dtype_named(dtype)) != count) {
      throw UsageError("inputs and target differ in size");
    }
    pointers.push_back(infos.back().ptr);
  }
  const WithoutGil released;
  found.many(out.ptr, pointers.data(), pointers.size(), count);
}

void reduce_pair(const std::string& op, const std::string& dtype, const py::buffer& target,
                 const py::buffer& a, const py::buffer& b, const std::string& isa) {
  const ReduceFunctions& found = functions(op, dtype, isa);
  const py::buffer_info out = target.request(true);
  const py::buffer_info first = a.request();
  const py::buffer_info second = b.request();
  const std::size_t count = count_of(out, dtype_named(dtype));
  if (count_of(first, dtype_named(dtype)) != count ||
      count_of(second, dtype_named(dtype)) != count) {
    throw UsageError("inputs and target differ in size");
  }
  const WithoutGil released;
  found.pair(out.ptr, first.ptr, second.ptr, count);
}

void scale_buffer(const std::string& dtype, const py::buffer& data, double factor, bool divide) {
  const DType type = dtype_named(dtype);
  if (type == DType::kBool) throw UsageError("bool cannot be scaled");
  const py::buffer_info info = data.request(true);
  const std::size_t count = count_of(info, type);
  const WithoutGil released;
  scale(info.ptr, count, type, factor, divide);
}

}  // namespace

void bind_reduce(py::module_& m) {
  m.def("reduce_pair", &reduce_pair, py::arg("op"), py::arg("dtype"), py::arg("target"),
        py::arg("a"), py::arg("b"), py::arg("isa") = "",
        "target = a op b on buffers of `dtype`; target may be a or b.");
  m.def("reduce_many", &reduce_many, py::arg("op"), py::arg("dtype"), py::arg("target"),
        py::arg("inputs"), py::arg("isa") = "",
        "target = inputs[0] op inputs[1] op ...; target may be one of them.");
  m.def("scale", &scale_buffer, py::arg("dtype"), py::arg("data"), py::arg("factor"),
        py::arg("divide") = false, "Multiply or divide data in place.");
  m.def(
      "element_types",
      [] {
        py::list rows;
        for (const DTypeInfo& info : kDTypeInfo) {
          rows.append(py::make_tuple(std::string(info.name), info.bytes,
                                     std::string(name_of(info.kind)), info.digits, info.dlpack,
                                     info.numpys));
        }
        return rows;
      },
      "The table of element types: name, bytes, kind, binary digits, DLPack's code, whether NumPy "
      "has it.");
  m.def(
      "operations",
      [] {
        py::list rows;
        for (const OpInfo& info : kOpInfo) {
          rows.append(py::make_tuple(std::string(info.name), std::string(info.ufunc)));
        }
        return rows;
      },
      "The table of operations: name, NumPy's function of two elements.");
  m.def("isas", &isas, "The instruction sets that this processor and build have, best first.");
  m.def("best_isa", &best_isa, "The instruction set that reductions use by default.");
}

}  // namespace gradred
