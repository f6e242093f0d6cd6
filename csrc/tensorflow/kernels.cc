// gradred's operations in TensorFlow's graphs. Loaded by tf.load_op_library, which finds what this
// object registers while it is loaded.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "named/kernel_calls.h"
#include "tensorflow/api.h"
#include "tensorflow/completion.h"

namespace gradred::tensorflow {
namespace {

struct Type {
  int number;  // TF_DataType
  DType dtype;
  const char* name;  // in definitions of operations
};
constexpr Type kTypes[] = {
    {1, DType::kFloat32, "float"},       {2, DType::kFloat64, "double"},
    {3, DType::kInt32, "int32"},         {4, DType::kUInt8, "uint8"},
    {5, DType::kInt16, "int16"},         {6, DType::kInt8, "int8"},
    {8, DType::kComplex64, "complex64"}, {9, DType::kInt64, "int64"},
    {10, DType::kBool, "bool"},          {14, DType::kBFloat16, "bfloat16"},
    {17, DType::kUInt16, "uint16"},      {18, DType::kComplex128, "complex128"},
    {19, DType::kFloat16, "half"},       {22, DType::kUInt32, "uint32"},
    {23, DType::kUInt64, "uint64"},
};
constexpr int kInt32 = 3;

const KernelCalls* core = nullptr;
const char* missing = nullptr;
bool waits_always = false;  // TensorFlow's completion function cannot be copied

// ---- attributes ---------------------------------------------------------------------------------

std::string text_of(KernelConstruction* from, const char* name, Status* status) {
  std::int32_t in_list = 0, length = 0;
  tf.OpKernelConstruction_GetAttrSize(from, name, &in_list, &length, status);
  if (tf.GetCode(status) != kOk) return {};
  std::string text(static_cast<std::size_t>(length), 0);
  tf.OpKernelConstruction_GetAttrString(from, name, text.data(), text.size(), status);
  return text;
}

std::int32_t number_of(KernelConstruction* from, const char* name, Status* status) {
  std::int64_t number = 0;
  tf.OpKernelConstruction_GetAttrInt64(from, name, &number, status);
  return static_cast<std::int32_t>(number);
}

std::optional<Op> op_named(const std::string& name) {
  for (const OpInfo& one : kOpInfo) {
    if (one.name == name) return one.op;
  }
  return std::nullopt;
}

// The node's name in the graph that is executed. TensorFlow puts the bodies of called functions,
// branches and loops into that graph and names their nodes "call/node". The names are unique there,
// and equal on all ranks but for numbers that it counts over the whole graph: "cond/then/_7/node".
std::string name_of_node(KernelConstruction* from) {
  const Text given = tf.OpKernelConstruction_GetName(from);
  std::string_view rest(given.data, given.length);
  std::string name;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    const bool is_count = part.size() > 1 && part[0] == '_' &&
                          part.find_first_not_of("0123456789", 1) == std::string_view::npos;
    if (!is_count) name.append(name.empty() ? "" : "/").append(part);
  }
  return name;
}

// One node of a graph.
struct Kernel {
  bool gives_rows = false;  // the node is a GradredRows
  bool waits = false;
  std::string kind, name, structure, wire;
  std::int32_t op = 0, root = 0, process_set = 0;
  double prescale = 1.0, postscale = 1.0;
};

template <bool gives_rows>
void* make(KernelConstruction* from) {
  const OwnStatus status;
  auto made = std::make_unique<Kernel>();
  made->gives_rows = gives_rows;
  made->kind = text_of(from, "kind", status);
  made->name = text_of(from, "tensor_name", status);
  // Attributes of type float would have float32's digits.
  made->prescale = std::strtod(text_of(from, "prescale", status).c_str(), nullptr);
  made->postscale = std::strtod(text_of(from, "postscale", status).c_str(), nullptr);
  made->root = number_of(from, "root", status);
  made->structure = text_of(from, "structure", status);
  made->wire = text_of(from, "wire", status);
  made->process_set = number_of(from, "process_set", status);
  unsigned char waits = 0;
  tf.OpKernelConstruction_GetAttrBool(from, "waits", &waits, status);
  made->waits = waits != 0;
  // An eager call without a name is counted.
  if (made->name.empty() && !made->waits) made->name = name_of_node(from);
  const std::string op = text_of(from, "op", status);
  const auto found = op_named(op);
  if (!found) tf.SetStatus(status, kInvalidArgument, ("gradred has no reduction " + op).c_str());
  made->op = static_cast<std::int32_t>(found.value_or(Op::kSum));
  if (!status.ok()) tf.OpKernelConstruction_Failure(from, status);
  return made.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// ---- one call -----------------------------------------------------------------------------------

struct Shaped {
  int type = 0;  // TF_DataType
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

// An input, which TensorFlow keeps until the kernel has ended.
Shaped input_of(KernelContext* context, int index, Status* status) {
  Tensor* tensor = nullptr;
  tf.GetInput(context, index, &tensor, status);
  if (tf.GetCode(status) != kOk) return {};
  Shaped found{tf.TensorType(tensor), {}, tf.TensorData(tensor)};
  for (int axis = 0; axis < tf.NumDims(tensor); ++axis) found.shape.push_back(tf.Dim(tensor, axis));
  tf.DeleteTensor(tensor);
  return found;
}

struct DeleteTensor {
  void operator()(Tensor* tensor) const { tf.DeleteTensor(tensor); }
};
using OwnTensor = std::unique_ptr<Tensor, DeleteTensor>;  // keeps the tensor's memory

// The output of this number, which may be in the memory of an input without another use.
OwnTensor output_like(KernelContext* context, int index, const Shaped& input, Status* status) {
  int forwarded = 0;
  return OwnTensor(tf.ForwardInputOrAllocateOutput(context, &index, 1, index, input.shape.data(),
                                                   static_cast<int>(input.shape.size()), &forwarded,
                                                   status));
}

struct Flight {
  const Kernel& kernel;
  KernelContext* const context;
  void* const given;  // TensorFlow's completion function, for a call that waits
  std::optional<Completion> completion{};
  std::vector<Shaped> inputs{};
  std::vector<OwnTensor> outputs{};

  // After a failure the MPI may still use the arrays, so they are never freed.
  void leave_memory() {
    const OwnStatus status;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensor* never_deleted = nullptr;
      tf.GetInput(context, static_cast<int>(i), &never_deleted, status);
    }
    for (OwnTensor& one : outputs) static_cast<void>(one.release());
  }
  void finish() const { completion ? completion->call() : tf.RunAsyncOpKernelDoneCallback(given); }
  void fail(const OwnStatus& status) const {
    tf.OpKernelContext_Failure(context, status);
    finish();
  }
};

DType dtype_of(int number) {
  for (const Type& one : kTypes) {
    if (one.number == number) return one.dtype;
  }
  return DType::kUInt8;  // the definitions below admit no other type
}

int code_of(KernelEnd end) {
  switch (end) {
    case KernelEnd::kWell:
      return kOk;
    case KernelEnd::kRefused:
      return kInvalidArgument;
    case KernelEnd::kNotServed:
    case KernelEnd::kDisagreed:
      return kFailedPrecondition;
    case KernelEnd::kLost:
      return kAborted;  // graphs turn kUnavailable, of TensorFlow's own network, into kInternal
    case KernelEnd::kFailed:
      break;
  }
  return kUnknown;
}

// Copies a result that gradred allocated to an output.
void put(KernelContext* context, int index, int type, const std::vector<std::int64_t>& shape,
         const void* data, std::size_t bytes, Status* status) {
  Tensor* const tensor = tf.AllocateOutput(context, index, type, shape.data(),
                                           static_cast<int>(shape.size()), bytes, status);
  if (tf.GetCode(status) != kOk) return;
  if (bytes > 0) std::memcpy(tf.TensorData(tensor), data, bytes);
  tf.DeleteTensor(tensor);
}

void put_rows(const Flight& flight, const KernelResult& result, Status* status) {
  const auto ranks = static_cast<std::size_t>(result.ranks);
  const std::size_t count = flight.inputs.size();
  std::vector<std::int32_t> table;
  for (std::size_t i = 0; i < count && tf.GetCode(status) == kOk; ++i) {
    const Shaped& input = flight.inputs[i];
    std::vector<std::int64_t> shape = input.shape;
    std::size_t row_bytes = size_of(dtype_of(input.type));
    for (std::size_t axis = 1; axis < shape.size(); ++axis) {
      row_bytes *= static_cast<std::size_t>(shape[axis]);
    }
    std::int64_t rows = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      table.push_back(static_cast<std::int32_t>(result.rows[i][rank]));
      rows += result.rows[i][rank];
    }
    if (flight.kernel.kind == "reducescatter") rows = result.rows[i][result.rank];
    shape[0] = rows;
    const std::size_t bytes = row_bytes * static_cast<std::size_t>(rows);
    put(flight.context, static_cast<int>(i), input.type, shape, result.outputs[i], bytes, status);
  }
  if (tf.GetCode(status) != kOk) return;
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(count),
                                           static_cast<std::int64_t>(ranks)};
  put(flight.context, static_cast<int>(count), kInt32, shape, table.data(),
      table.size() * sizeof(std::int32_t), status);
}

void ended(void* context, const KernelResult* result) {
  const std::unique_ptr<Flight> flight(static_cast<Flight*>(context));
  const OwnStatus status;
  if (result->holds_memory) flight->leave_memory();
  flight->outputs.clear();
  if (result->end != KernelEnd::kWell) {
    tf.SetStatus(status, code_of(result->end), result->text);
  } else if (flight->kernel.gives_rows) {
    put_rows(*flight, *result, status);
  }
  status.ok() ? flight->finish() : flight->fail(status);
}

// Whether the kernel may return before it has ended; says so once if it may not.
bool may_return(const void* completion) {
  static const bool copied = [completion] {
    if (Completion::may_be_copied(completion)) return true;
    waits_always = true;
    std::fprintf(stderr,
                 "gradred: this TensorFlow's kernels cannot end later than they return. They wait, "
                 "and each occupies a thread: reduce tensors together (grouped_allreduce), or set "
                 "inter_op_parallelism_threads above the number of operations in flight\n");
    return false;
  }();
  return copied;
}

void compute(void* made, KernelContext* context, void* completion) {
  const auto& kernel = *static_cast<const Kernel*>(made);
  auto flight = std::make_unique<Flight>(kernel, context, completion);
  const OwnStatus status;
  if (core == nullptr) {
    tf.SetStatus(status, kFailedPrecondition, "gradred has not been initialized");
    return flight->fail(status);
  }
  const int count = tf.NumInputs(context) - (kernel.gives_rows ? 1 : 0);
  std::vector<KernelArray> arrays;
  for (int i = 0; i < count; ++i) {
    flight->inputs.push_back(input_of(context, i, status));
    if (!status.ok()) return flight->fail(status);
  }
  for (int i = 0; i < count; ++i) {
    const Shaped& input = flight->inputs[static_cast<std::size_t>(i)];
    if (!kernel.gives_rows) flight->outputs.push_back(output_like(context, i, input, status));
    if (!status.ok()) return flight->fail(status);
    arrays.push_back(
        {.in = input.data,
         .out = kernel.gives_rows ? nullptr : tf.TensorData(flight->outputs.back().get()),
         .dtype = static_cast<std::int32_t>(dtype_of(input.type)),
         .axes = static_cast<std::int32_t>(input.shape.size()),
         .shape = input.shape.data()});
  }
  Shaped splits;
  if (kernel.gives_rows) splits = input_of(context, count, status);
  if (!status.ok()) return flight->fail(status);
  const KernelCall call{
      .process_set = kernel.process_set,
      .kind = kernel.kind.c_str(),
      .name = kernel.name.c_str(),
      .op = kernel.op,
      .prescale = kernel.prescale,
      .postscale = kernel.postscale,
      .root = kernel.root,
      .structure = kernel.structure.c_str(),
      .wire = kernel.wire.c_str(),
      .arrays = arrays.data(),
      .count = arrays.size(),
      .splits = static_cast<const std::int64_t*>(splits.data),
      .split_count = splits.shape.empty() ? 0 : static_cast<std::size_t>(splits.shape[0]),
  };
  const bool waits = kernel.waits || !may_return(completion);
  if (!waits) flight->completion.emplace(completion);
  core->submit(&call, waits, ended, flight.release());
}

// ---- definitions --------------------------------------------------------------------------------

void infer_same_shapes(ShapeContext* context, Status* status) {
  const auto inputs = static_cast<int>(tf.ShapeInferenceContextNumInputs(context));
  ShapeHandle* const shape = tf.NewShapeHandle();
  for (int i = 0; i < inputs && tf.GetCode(status) == kOk; ++i) {
    tf.ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf.GetCode(status) == kOk) tf.ShapeInferenceContextSetOutput(context, i, shape, status);
  }
  tf.DeleteShapeHandle(shape);
}

void infer_no_shapes(ShapeContext* context, Status* status) {
  tf.ShapeInferenceContextSetUnknownShape(context, status);
}

void report(const OwnStatus& status, const char* what) {
  if (!status.ok()) std::fprintf(stderr, "gradred: %s: %s\n", what, tf.Message(status));
}

// Registers an operation and its kernel. It runs on hosts: TensorFlow copies tensors of a GPU.
template <bool gives_rows>
void define(const char* name) {
  std::string types = "T: list({";
  for (const Type& one : kTypes) types += (&one == kTypes ? "" : ", ") + std::string(one.name);
  types += "}) >= 1";
  OpBuilder* const op = tf.NewOpDefinitionBuilder(name);
  tf.OpDefinitionBuilderAddAttr(op, types.c_str());
  for (const char* const attribute :
       {"kind: string", "tensor_name: string", "op: string", "prescale: string",
        "postscale: string", "root: int", "structure: string", "wire: string", "process_set: int",
        "waits: bool"}) {
    tf.OpDefinitionBuilderAddAttr(op, attribute);
  }
  tf.OpDefinitionBuilderAddInput(op, "tensors: T");
  if (gives_rows) tf.OpDefinitionBuilderAddInput(op, "splits: int64");
  tf.OpDefinitionBuilderAddOutput(op, "results: T");
  if (gives_rows) tf.OpDefinitionBuilderAddOutput(op, "rows: int32");
  // Else TensorFlow would merge equal nodes, and leave out those whose result nothing uses.
  tf.OpDefinitionBuilderSetIsStateful(op, true);
  tf.OpDefinitionBuilderSetShapeInferenceFunction(op,
                                                  gives_rows ? infer_no_shapes : infer_same_shapes);
  const OwnStatus status;
  tf.RegisterOpDefinition(op, status);
  report(status, name);
  KernelBuilder* const kernel =
      tf.NewAsyncKernelBuilder(name, "CPU", make<gives_rows>, compute, destroy);
  const OwnStatus of_kernel;
  tf.RegisterKernelBuilder(name, kernel, of_kernel);
  report(of_kernel, name);
}

__attribute__((constructor)) void when_loaded() {
  missing = look_up();
  if (missing != nullptr) return;
  define<false>("GradredReduce");
  define<true>("GradredRows");
}

}  // namespace
}  // namespace gradred::tensorflow

// For Python, which calls them by ctypes.
extern "C" {

// The name of what this TensorFlow lacks; nullptr: the operations are registered.
__attribute__((visibility("default"))) const char* gradred_tensorflow_missing() {
  return gradred::tensorflow::missing;
}

// Gives the kernels the address of the core's functions. Returns whether they are of this version.
__attribute__((visibility("default"))) bool gradred_tensorflow_use(const void* calls) {
  const auto* const given = static_cast<const gradred::KernelCalls*>(calls);
  if (given->version != gradred::KernelCalls::kVersion) return false;
  gradred::tensorflow::core = given;
  return true;
}

// Whether a kernel has found that it has to wait.
__attribute__((visibility("default"))) bool gradred_tensorflow_waits() {
  return gradred::tensorflow::waits_always;
}
}
