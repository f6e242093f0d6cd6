// Calls on lists of arrays: several arrays in one call.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/pieces.h"
#include "python/comm_calls.h"
#include "python/device_arrays.h"
#include "python/mpi4py.h"
#include "python/names.h"
#include "python/numpy.h"
#include "python/one_thread.h"
#include "python/py_call.h"
#include "python/tensors.h"
#include "python/wait_hook.h"
#include "reduce/reduce.h"
#include "reduce/wire.h"

namespace py = pybind11;

namespace gradred {
namespace {

using Described = std::tuple<std::uintptr_t, std::uintptr_t, std::size_t, std::string,
                             std::uint64_t, std::optional<Placement>>;
using Operations = std::map<std::string, std::pair<std::string, double>>;

struct Pieces {
  std::vector<Piece> all;
};

// Arrays that are reduced as one vector, and the call that reduces it.
class PyBucket {
 public:
  PyBucket(Bucket bucket, std::shared_ptr<PyCall> made)
      : bucket_(std::move(bucket)), made_(std::move(made)) {}

  const std::shared_ptr<PyCall>& call() const { return made_; }
  std::size_t bytes() const {
    return bucket_.packed() ? bucket_.bytes() : 0;
  }  // to copy; 0 if not packed

  void pack() {
    if (!bucket_.packed()) return;
    vector_ = HostVector(bucket_.bytes(), bucket_.device());
    PieceCopies copies;
    bucket_.pack(vector_.data(), copies);
    finish(copies);
    made_->call.out.data = vector_.data();
  }
  void unpack() {
    if (vector_.data() != nullptr) {
      PieceCopies copies;
      bucket_.unpack(vector_.data(), copies);
      finish(copies);
    }
    vector_ = HostVector();
  }

 private:
  void finish(PieceCopies& copies) {
    try {
      copies.finish();
    } catch (...) {
      if (!copies.settle()) vector_.keep_for_ever();
      throw;
    }
  }

  Bucket bucket_;
  std::shared_ptr<PyCall> made_;
  HostVector vector_;  // of a packed bucket, until unpack()
};
using PyBuckets = std::vector<std::shared_ptr<PyBucket>>;

Pieces pieces_of(const std::vector<Described>& described) {
  Pieces made;
  RecordedEvents events;
  for (const auto& [send, recv, count, dtype, layout, placement] : described) {
    Piece& piece = made.all.emplace_back();
    piece.in.data = reinterpret_cast<const void*>(send);
    piece.out.data = reinterpret_cast<void*>(recv);
    piece.count = count;
    piece.dtype = dtype_named(dtype);
    piece.layout = layout;
    if (!placement) continue;
    piece.in.memory = memory_of(placement->send);
    piece.out.memory = memory_of(placement->recv);
    piece.after = placement->after_all(events);
  }
  return made;
}

// A plain array in host memory, and the hash of its shape and order of axes.
struct LaidOut {
  ArrayView view;
  std::uint64_t layout;
};
std::optional<LaidOut> laid_out(PyObject* object) {
  if (const auto numpys = view_of(object)) return LaidOut{*numpys, layout_of_plain(object)};
  const auto other = shaped_array_of(object);
  if (!other || other->memory != nullptr) return std::nullopt;
  return LaidOut{*other, other->layout()};
}

struct PlainPieces {
  Pieces pieces;
  py::list results;
};

// Pieces of plain arrays and their results. Returns nullopt if the Python path has to handle any.
std::optional<PlainPieces> plain_pieces(const py::list& inputs, const py::object& outputs) {
  const std::size_t count = inputs.size();
  const bool given = !outputs.is_none();
  if (given && (!py::isinstance<py::list>(outputs) || py::len(outputs) != count)) {
    return std::nullopt;
  }
  PlainPieces made{.pieces = {}, .results = py::list(count)};
  std::vector<Piece>& all = made.pieces.all;
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const py::object input = inputs[i];
    const auto from = laid_out(input.ptr());
    if (!from) return std::nullopt;
    const py::object output = given ? py::object(outputs.cast<py::list>()[i]) : new_like(input);
    const auto into = output ? laid_out(output.ptr()) : std::nullopt;
    if (!into || !into->view.writable || into->view.dtype != from->view.dtype ||
        into->layout != from->layout) {
      return std::nullopt;
    }
    all.push_back(
        {{from->view.data}, {into->view.data}, from->view.count, from->view.dtype, from->layout});
    made.results[i] = output;
  }
  if (given && shared_memory_of(all)) return std::nullopt;
  if (given) {
    for (const py::handle result : made.results) tell_of_write(result.ptr());
  }
  return made;
}

std::shared_ptr<PyCall> call_of(const Bucket& bucket, const Operations& operations,
                                std::uint64_t layout, const std::string& plan,
                                const std::shared_ptr<Schedule>& schedule, Wire wire) {
  const auto& [op, factor] = operations.at(std::string(name_of(bucket.dtype)));
  auto made = std::make_shared<PyCall>();
  made->plan = plan;
  made->call = {.kind = Kind::kAllreduce,
                .count = bucket.count,
                .dtype = bucket.dtype,
                .op = op_named(op),
                .factor = factor,
                .layout = layout,
                .wire = wire,
                .plan = plan.empty() ? nullptr : made->plan.c_str(),
                .schedule = schedule};
  if (bucket.pieces.size() == 1) {
    const Piece& piece = bucket.pieces.front();
    made->call.out = piece.out;
    made->call.order = CallOrder::after(piece.after);
    if (!piece.in_place()) made->call.in = piece.in;
  }
  return made;
}

// Makes the buckets of a call. A blocking call sets up the communicator first, as the decision what
// to pack depends on where the ranks are.
PyBuckets make_buckets(const py::object& comm, const Pieces& pieces, const Operations& operations,
                       std::uint64_t layout, const std::string& plan,
                       const std::shared_ptr<Schedule>& schedule, const std::string& wire,
                       bool blocking) {
  Communicator& communicator = communicator_of(comm.ptr());
  const auto alive = communicator.shared();
  if (blocking) {
    const OneThread one_thread(communicator);
    GilHook hook;
    communicator.prepare(hook);
  }
  PyBuckets made;
  for (Bucket& bucket : buckets_of(pieces.all, packed_up_to(communicator))) {
    auto call = call_of(bucket, operations, layout, plan, schedule, wire_named(wire));
    made.push_back(std::make_shared<PyBucket>(std::move(bucket), std::move(call)));
  }
  return made;
}

void run_buckets(const py::object& comm, const PyBuckets& buckets) {
  Communicator& communicator = communicator_of(comm.ptr());
  const auto alive = communicator.shared();
  const OneThread one_thread(communicator);
  GilHook hook;
  for (const auto& bucket : buckets) {
    if (bucket->bytes() > kLongWorkBytes) hook.long_work();
    try {
      bucket->pack();
    } catch (const std::bad_alloc&) {
      communicator.refuse("no memory to pack its arrays in", hook);
      throw;
    } catch (const Error& error) {
      communicator.refuse(error.what(), hook);
      throw;
    }
    communicator.run(bucket->call()->call, hook);
    bucket->unpack();
  }
}

// Blocks. Returns the results, or None if the Python path has to handle the arguments.
py::object allreduce_list(const py::object& comm, const py::object& inputs, const py::object& op,
                          const py::object& outputs) {
  if (!PyList_CheckExact(inputs.ptr()) || py::len(inputs) == 0) return py::none();
  auto found = plain_pieces(inputs, outputs);
  const auto known = asked_op(op.ptr());
  if (!found || !known) return py::none();
  Operations operations;
  for (const Piece& piece : found->pieces.all) {
    if (find_reduction(*known, piece.dtype) == nullptr) return py::none();
    operations.try_emplace(std::string(name_of(piece.dtype)), std::string(name_of(*known)), 1.0);
  }
  const std::uint64_t layout = hash_of(found->pieces.all);
  run_buckets(comm, make_buckets(comm, found->pieces, operations, layout, "", nullptr, "", true));
  return std::move(found->results);
}

}  // namespace

void bind_many(py::module_& m) {
  py::class_<Pieces>(m, "Pieces")
      .def(py::init(&pieces_of), py::arg("described"),
           "Of (input, result, count, element type, layout hash, placement) of each; equal "
           "addresses: in "
           "place.")
      .def_property_readonly(
          "hash", [](const Pieces& pieces) { return hash_of(pieces.all); },
          "Of the types and layouts, which ranks compare.")
      .def_property_readonly(
          "shared_memory",
          [](const Pieces& pieces) -> py::object {
            const auto found = shared_memory_of(pieces.all);
            if (!found) return py::none();
            return py::make_tuple(found->result, found->other, found->both_results);
          },
          "A result that shares memory with another result, or with an input that it does not "
          "replace: both indices, and whether both are results. None: there is none.")
      .def_property_readonly(
          "dtypes",
          [](const Pieces& pieces) {
            py::dict found;  // in order of first appearance
            for (const Piece& piece : pieces.all) {
              found[py::str(std::string(name_of(piece.dtype)))] = py::none();
            }
            return py::list(found);
          },
          "The types, in the order in which they come first.");
  py::class_<PyBucket, std::shared_ptr<PyBucket>>(m, "Bucket")
      .def_property_readonly("call", &PyBucket::call, "Of a packed one after pack().")
      .def("pack", &PyBucket::pack, "Copies the inputs into one vector.")
      .def("unpack", &PyBucket::unpack, "Copies the results to where they belong.");
  m.def(
      "plain_pieces",
      [](const py::list& inputs, const py::object& outputs) -> py::object {
        auto found = plain_pieces(inputs, outputs);
        if (!found) return py::none();
        return py::make_tuple(std::move(found->pieces), std::move(found->results));
      },
      py::arg("inputs"), py::arg("outputs"),
      "Return the pieces and results of plain arrays in host memory; None where any takes a closer "
      "look.");
  m.def("allreduce_list", &allreduce_list, py::arg("comm"), py::arg("arrays"), py::arg("op"),
        py::arg("out"),
        "Block, and return the results, or None where the arrays or the operation take a closer "
        "look.");
  m.def("make_buckets", &make_buckets, py::arg("comm"), py::arg("pieces"), py::arg("operations"),
        py::kw_only(), py::arg("layout"), py::arg("plan") = "",
        py::arg("schedule") = std::shared_ptr<Schedule>(), py::arg("wire") = "",
        py::arg("blocking"),
        "Return the calls that reduce the pieces; `operations` are names and factors by type.");
  m.def("run_buckets", &run_buckets, py::arg("comm"), py::arg("buckets"),
        "Blocks until all results are in place.");
}

}  // namespace gradred
