// The tables of element types and operations, and a reduction of two buffers, which `gradred
// explain` measures.
#include "reduce/reduce.h"

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/types.h"
#include "base/user_ops.h"
#include "device/compile/user_functions.h"
#include "device/kernels/kernels.h"
#include "python/names.h"
#include "python/raw_buffers.h"
#include "reduce/exact_sum.h"
#include "reduce/leaf_sums.h"
#include "reduce/wire.h"

namespace gradred {
namespace {

namespace py = pybind11;

void reduce_pair(const std::string& op, const std::string& dtype, const py::buffer& target,
                 const py::buffer& a, const py::buffer& b) {
  const ReduceFunctions* found = find_reduction(op_named(op), dtype_named(dtype));
  if (found == nullptr) throw UsageError(op + " of " + dtype + " does not exist");
  reduce_buffers(*found, dtype_named(dtype), target, a, b);
}

void add_functions(const std::string& op, const std::string& dtype, std::uintptr_t pair,
                   std::uintptr_t many) {
  add_reduction(op_named(op), dtype_named(dtype),
                {reinterpret_cast<decltype(ReduceFunctions::pair)>(pair),
                 reinterpret_cast<decltype(ReduceFunctions::many)>(many)});
}

py::list element_types() {
  py::list rows;
  for (const DTypeInfo& info : kDTypeInfo) {
    rows.append(py::make_tuple(std::string(info.name), info.bytes, std::string(name_of(info.kind)),
                               info.digits, info.dlpack, info.numpys));
  }
  return rows;
}

py::list operations() {
  py::list rows;
  for (const OpInfo& info : kOpInfo) {
    rows.append(py::make_tuple(std::string(info.name), std::string(info.ufunc)));
  }
  return rows;
}

py::bytes exact_words(std::uintptr_t address, std::size_t count, const std::string& dtype) {
  std::vector<std::int64_t> words;
  {
    const WithoutGil released;
    ExactSum sum(dtype_named(dtype));
    sum.add(reinterpret_cast<const void*>(address), count);
    words = sum.words();
  }
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]};
}

double exact_value(const py::buffer& words, const std::string& dtype) {
  const py::buffer_info info = words.request();
  const std::size_t count = count_of(info, DType::kInt64);
  return ExactSum::rounded({static_cast<const std::int64_t*>(info.ptr), count}, dtype_named(dtype));
}

void add_leaves_of(std::uintptr_t parts, std::uintptr_t address, std::size_t count,
                   const std::string& dtype, const std::string& op, double factor,
                   const std::vector<int>& leaves, std::size_t rank) {
  const Vectors own{reinterpret_cast<const void*>(address), count, dtype_named(dtype),
                    op_named(op)};
  const WithoutGil released;
  add_leaves(LeafTree(leaves), rank, own, factor, reinterpret_cast<void*>(parts));
}

void add_parts_of(std::uintptr_t result, std::uintptr_t address, std::size_t count,
                  const std::string& dtype, const std::string& op, const std::vector<int>& leaves,
                  std::size_t most) {
  const Vectors all{reinterpret_cast<const void*>(address), count, dtype_named(dtype),
                    op_named(op)};
  const WithoutGil released;
  add_parts(LeafTree(leaves), all, most, reinterpret_cast<void*>(result));
}

Wire form_named(const std::string& name) {
  const Wire wire = wire_named(name);
  if (wire == Wire::kNone || wire == Wire::kAuto) throw UsageError("no form is '" + name + "'");
  return wire;
}

void encode_wire_at(const std::string& wire, std::uintptr_t values, std::size_t count,
                    std::uintptr_t to, const std::string& isa) {
  const WithoutGil released;
  encode_wire(form_named(wire), reinterpret_cast<const float*>(values), count,
              reinterpret_cast<std::byte*>(to), isa);
}

void decode_wire_at(const std::string& wire, std::uintptr_t from, std::size_t count,
                    std::uintptr_t values, bool adds, const std::string& isa) {
  const WithoutGil released;
  decode_wire(form_named(wire), reinterpret_cast<const std::byte*>(from), count,
              reinterpret_cast<float*>(values), adds, isa);
}

}  // namespace

void bind_reduce(py::module_& m) {
  py::list forms;
  for (const WireInfo& form : kWires) forms.append(form.name);
  m.attr("WIRES") = py::tuple(forms);
  m.def(
      "wire_bytes",
      [](const std::string& wire, std::size_t count) {
        return wire_bytes(form_named(wire), count);
      },
      py::arg("wire"), py::arg("count"), "Return the bytes of so many encoded float32 numbers.");
  m.def("encode_wire", &encode_wire_at, py::arg("wire"), py::arg("values"), py::arg("count"),
        py::arg("to"), py::arg("isa") = "", "Encode float32 numbers, as csrc/reduce/wire.h says.");
  m.def("decode_wire", &decode_wire_at, py::arg("wire"), py::arg("coded"), py::arg("count"),
        py::arg("values"), py::arg("adds"), py::arg("isa") = "",
        "Decode numbers to `values`, or add them to those there.");
  m.def(
      "has_reduction",
      [](const std::string& op, const std::string& dtype) {
        return find_reduction(op_named(op), dtype_named(dtype)) != nullptr;
      },
      py::arg("op"), py::arg("dtype"));
  m.def(
      "make_operation", [](const std::string& name, std::uint64_t hash) { user_op(name, hash); },
      py::arg("name"), py::arg("hash"),
      "From now on there is an operation of this name, as yet for no type. Ranks compare the "
      "hash.");
  m.def("exact_words", &exact_words, py::arg("address"), py::arg("count"), py::arg("dtype"),
        "Return the exact sum of an array as int64s, which are added up one by one over arrays.");
  m.def("exact_value", &exact_value, py::arg("words"), py::arg("dtype"),
        "Return the number of the type that is nearest to such a sum.");
  m.def(
      "parts_of_leaves",
      [](const std::vector<int>& leaves, std::size_t rank) {
        std::vector<std::size_t> widths;
        for (const LeafNode& part : LeafTree(leaves).parts_of(rank)) widths.push_back(part.width);
        return widths;
      },
      py::arg("leaves"), py::arg("rank"),
      "Return the widths of a rank's parts, where ranks have so many leaves each.");
  m.def("add_leaves", &add_leaves_of, py::arg("parts"), py::arg("address"), py::arg("count"),
        py::arg("dtype"), py::arg("op"), py::arg("factor"), py::arg("leaves"), py::arg("rank"),
        "Add up a rank's own leaves at `address`, of `count` elements each: write its parts.");
  m.def("add_parts", &add_parts_of, py::arg("result"), py::arg("address"), py::arg("count"),
        py::arg("dtype"), py::arg("op"), py::arg("leaves"), py::arg("most"),
        "Add up the parts of all ranks at `address`, `most` vectors of `count` elements a rank.");
  m.def("add_reduction", &add_functions, py::arg("op"), py::arg("dtype"), py::arg("pair"),
        py::arg("many"),
        "Add the C functions at these addresses, as ReduceFunctions of csrc/reduce/reduce.h says, "
        "that stay "
        "as long as the process.");
  m.def(
      "has_device_type",
      [](const std::string& dtype) { return device::Kernels::has_type(dtype_named(dtype)); },
      py::arg("dtype"), "Return whether there are kernels for elements of this type.");
  m.def(
      "add_device_reduction",
      [](const std::string& op, const std::string& dtype, std::string code, std::string why_not) {
        device::add_user_function(op_named(op), dtype_named(dtype),
                                  {std::move(code), std::move(why_not)});
      },
      py::arg("op"), py::arg("dtype"), py::arg("code"), py::arg("why_not"),
      "Add a function for GPUs: code as UserFunction of csrc/device/compile/user_functions.h says, "
      "or "
      "why there "
      "is "
      "none.");
  m.def("reduce_pair", &reduce_pair, py::arg("op"), py::arg("dtype"), py::arg("target"),
        py::arg("a"), py::arg("b"), "target = a op b on buffers of `dtype`; target may be a or b.");
  m.def("element_types", &element_types,
        "Return the table of element types: name, bytes, kind, binary digits, DLPack's code, "
        "whether NumPy "
        "has it.");
  m.def("operations", &operations,
        "Return the table of operations: name, NumPy's function of two.");
}

}  // namespace gradred
