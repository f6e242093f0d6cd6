#include "tensorflow/api.h"

#include <dlfcn.h>

#include <type_traits>

namespace gradred::tensorflow {

Functions tf;

const char* look_up() {
  constexpr const char* kLibrary = "libtensorflow_framework.so.2";
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return kLibrary;
  const char* missing = nullptr;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  get(tf.NewStatus, "TF_NewStatus");
  get(tf.DeleteStatus, "TF_DeleteStatus");
  get(tf.GetCode, "TF_GetCode");
  get(tf.Message, "TF_Message");
  get(tf.SetStatus, "TF_SetStatus");
  get(tf.NewOpDefinitionBuilder, "TF_NewOpDefinitionBuilder");
  get(tf.OpDefinitionBuilderAddAttr, "TF_OpDefinitionBuilderAddAttr");
  get(tf.OpDefinitionBuilderAddInput, "TF_OpDefinitionBuilderAddInput");
  get(tf.OpDefinitionBuilderAddOutput, "TF_OpDefinitionBuilderAddOutput");
  get(tf.OpDefinitionBuilderSetIsStateful, "TF_OpDefinitionBuilderSetIsStateful");
  get(tf.OpDefinitionBuilderSetShapeInferenceFunction,
      "TF_OpDefinitionBuilderSetShapeInferenceFunction");
  get(tf.RegisterOpDefinition, "TF_RegisterOpDefinition");
  get(tf.ShapeInferenceContextNumInputs, "TF_ShapeInferenceContextNumInputs");
  get(tf.NewShapeHandle, "TF_NewShapeHandle");
  get(tf.DeleteShapeHandle, "TF_DeleteShapeHandle");
  get(tf.ShapeInferenceContextGetInput, "TF_ShapeInferenceContextGetInput");
  get(tf.ShapeInferenceContextSetOutput, "TF_ShapeInferenceContextSetOutput");
  get(tf.ShapeInferenceContextSetUnknownShape, "TF_ShapeInferenceContextSetUnknownShape");
  get(tf.NewAsyncKernelBuilder, "TF_NewAsyncKernelBuilder");
  get(tf.RegisterKernelBuilder, "TF_RegisterKernelBuilder");
  get(tf.RunAsyncOpKernelDoneCallback, "TF_RunAsyncOpKernelDoneCallback");
  get(tf.OpKernelConstruction_GetAttrSize, "TF_OpKernelConstruction_GetAttrSize");
  get(tf.OpKernelConstruction_GetAttrString, "TF_OpKernelConstruction_GetAttrString");
  get(tf.OpKernelConstruction_GetAttrInt64, "TF_OpKernelConstruction_GetAttrInt64");
  get(tf.OpKernelConstruction_GetAttrBool, "TF_OpKernelConstruction_GetAttrBool");
  get(tf.OpKernelConstruction_GetName, "TF_OpKernelConstruction_GetName");
  get(tf.OpKernelConstruction_Failure, "TF_OpKernelConstruction_Failure");
  get(tf.NumInputs, "TF_NumInputs");
  get(tf.GetInput, "TF_GetInput");
  get(tf.AllocateOutput, "TF_AllocateOutput");
  get(tf.ForwardInputOrAllocateOutput, "TF_ForwardInputOrAllocateOutput");
  get(tf.OpKernelContext_Failure, "TF_OpKernelContext_Failure");
  get(tf.TensorData, "TF_TensorData");
  get(tf.TensorType, "TF_TensorType");
  get(tf.NumDims, "TF_NumDims");
  get(tf.Dim, "TF_Dim");
  get(tf.DeleteTensor, "TF_DeleteTensor");
  return missing;
}

}  // namespace gradred::tensorflow
