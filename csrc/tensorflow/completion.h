// The function by which a kernel reports to TensorFlow that it has ended.
#pragma once

#include <dlfcn.h>

#include <cstdint>

#include "tensorflow/api.h"

namespace gradred::tensorflow {

// A copy of TensorFlow's completion function. TensorFlow passes its kernels the address of a
// std::function that lives until the kernel returns (tensorflow/c/kernels.cc, CAsyncOpKernel), so
// that a kernel that ends later needs a copy. TensorFlow is built with libstdc++; this object may
// be built with another library, so the structure is written down here (GCC's
// bits/std_function.h; unchanged since GCC 5).
class Completion {
 public:
  // `given`: TensorFlow's pointer. Only if may_be_copied(given).
  explicit Completion(const void* given) {
    const auto& other = *static_cast<const Function*>(given);
    other.manage(&function_, &other, kClone);
    function_.manage = other.manage;
    function_.invoke = other.invoke;
  }
  ~Completion() { function_.manage(&function_, &function_, kDestroy); }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  void call() const { function_.invoke(&function_); }

  // Whether `given` looks like a std::function of libstdc++: both of its functions lie in
  // TensorFlow's libraries.
  static bool may_be_copied(const void* given) {
    const auto& function = *static_cast<const Function*>(given);
    return is_tensorflows(reinterpret_cast<const void*>(function.manage)) &&
           is_tensorflows(reinterpret_cast<const void*>(function.invoke));
  }

 private:
  struct Function;
  using Manage = bool (*)(Function* to, const Function* from, int what);
  using Invoke = void (*)(const Function* function);
  struct Function {
    alignas(void*) unsigned char stored[2 * sizeof(void*)];  // at the address of the whole
    Manage manage;
    Invoke invoke;
  };
  enum : int { kClone = 2, kDestroy = 3 };

  static bool is_tensorflows(const void* function);

  Function function_{};
};

}  // namespace gradred::tensorflow
