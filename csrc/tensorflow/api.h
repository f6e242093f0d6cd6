// TensorFlow's C API for operations and kernels, declared here by hand and looked up in the
// TensorFlow of this process: neither its headers nor its library are needed to build. TensorFlow
// keeps this API stable for kernels of third parties (tensorflow/c/kernels.h, ops.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradred::tensorflow {

// TensorFlow's own structures, which are known by address alone.
struct Status;
struct OpBuilder;
struct KernelBuilder;
struct KernelConstruction;
struct KernelContext;
struct ShapeContext;
struct ShapeHandle;
struct Tensor;

// TF_StringView: a text that TensorFlow owns.
struct Text {
  const char* data;
  std::size_t length;
};

// TF_Code, of tensorflow/c/tf_status.h.
enum Code : int {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
  kAborted = 10,
};

// The functions of the API that gradred uses, without their prefix TF_.
struct Functions {
  Status* (*NewStatus)();
  void (*DeleteStatus)(Status*);
  int (*GetCode)(const Status*);
  const char* (*Message)(const Status*);
  void (*SetStatus)(Status*, int, const char*);
  OpBuilder* (*NewOpDefinitionBuilder)(const char*);
  void (*OpDefinitionBuilderAddAttr)(OpBuilder*, const char*);
  void (*OpDefinitionBuilderAddInput)(OpBuilder*, const char*);
  void (*OpDefinitionBuilderAddOutput)(OpBuilder*, const char*);
  void (*OpDefinitionBuilderSetIsStateful)(OpBuilder*, bool);
  void (*OpDefinitionBuilderSetShapeInferenceFunction)(OpBuilder*,
                                                       void (*)(ShapeContext*, Status*));
  void (*RegisterOpDefinition)(OpBuilder*, Status*);
  std::int64_t (*ShapeInferenceContextNumInputs)(ShapeContext*);
  ShapeHandle* (*NewShapeHandle)();
  void (*DeleteShapeHandle)(ShapeHandle*);
  void (*ShapeInferenceContextGetInput)(ShapeContext*, int, ShapeHandle*, Status*);
  void (*ShapeInferenceContextSetOutput)(ShapeContext*, int, ShapeHandle*, Status*);
  void (*ShapeInferenceContextSetUnknownShape)(ShapeContext*, Status*);
  KernelBuilder* (*NewAsyncKernelBuilder)(const char*, const char*, void* (*)(KernelConstruction*),
                                          void (*)(void*, KernelContext*, void*), void (*)(void*));
  void (*RegisterKernelBuilder)(const char*, KernelBuilder*, Status*);
  void (*RunAsyncOpKernelDoneCallback)(void*);
  void (*OpKernelConstruction_GetAttrSize)(KernelConstruction*, const char*, std::int32_t*,
                                           std::int32_t*, Status*);
  void (*OpKernelConstruction_GetAttrString)(KernelConstruction*, const char*, char*, std::size_t,
                                             Status*);
  void (*OpKernelConstruction_GetAttrInt64)(KernelConstruction*, const char*, std::int64_t*,
                                            Status*);
  void (*OpKernelConstruction_GetAttrBool)(KernelConstruction*, const char*, unsigned char*,
                                           Status*);
  Text (*OpKernelConstruction_GetName)(KernelConstruction*);
  void (*OpKernelConstruction_Failure)(KernelConstruction*, Status*);
  int (*NumInputs)(KernelContext*);
  void (*GetInput)(KernelContext*, int, Tensor**, Status*);
  Tensor* (*AllocateOutput)(KernelContext*, int, int, const std::int64_t*, int, std::size_t,
                            Status*);
  Tensor* (*ForwardInputOrAllocateOutput)(KernelContext*, const int*, int, int, const std::int64_t*,
                                          int, int*, Status*);
  void (*OpKernelContext_Failure)(KernelContext*, Status*);
  void* (*TensorData)(const Tensor*);
  int (*TensorType)(const Tensor*);
  int (*NumDims)(const Tensor*);
  std::int64_t (*Dim)(const Tensor*, int);
  void (*DeleteTensor)(Tensor*);
};

extern Functions tf;

// Looks up all functions. Returns the name of one that the TensorFlow of this process lacks, or
// nullptr if it has all of them.
const char* look_up();

// A status that is deleted with this object.
class OwnStatus {
 public:
  OwnStatus() : status_(tf.NewStatus()) {}
  ~OwnStatus() { tf.DeleteStatus(status_); }
  OwnStatus(const OwnStatus&) = delete;
  OwnStatus& operator=(const OwnStatus&) = delete;

  operator Status*() const { return status_; }
  bool ok() const { return tf.GetCode(status_) == kOk; }

 private:
  Status* const status_;
};

}  // namespace gradred::tensorflow
