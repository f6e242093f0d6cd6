// Replaces for g++ what the kernels in csrc/device/kernels use of a CUDA compiler. A kernel becomes
// a function of a host thread, which acts as the threads of a launch one after the other.
#pragma once

#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <thread>

struct Indices {
  unsigned x = 0;
};
inline thread_local Indices threadIdx, blockIdx, blockDim, gridDim;

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }

inline float gradred_from_half(unsigned bits) {
  const unsigned exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const unsigned sign = (bits >> 15) << 31;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000U | (mantissa << 13));
  const float magnitude = exponent == 0
                              ? static_cast<float>(mantissa) * 0x1p-24F
                              : __uint_as_float(((exponent + 112) << 23) | (mantissa << 13));
  return __uint_as_float(sign | __float_as_uint(magnitude));
}

// Rounds to nearest, ties to even. Does not support NaN.
inline unsigned gradred_to_half(float x) {
  const unsigned bits = __float_as_uint(x), sign = (bits >> 31) << 15;
  const float magnitude = __uint_as_float(bits & 0x7fffffffU);
  if (magnitude >= 65520.0F) return sign | 0x7c00U;
  if (magnitude < 0x1p-14F) {  // the last place of the sum is the smallest half
    return sign | (__float_as_uint(magnitude + 0.5F) - __float_as_uint(0.5F));
  }
  const unsigned kept = __float_as_uint(magnitude) - (112U << 23);
  return sign | ((kept + 0xfffU + ((kept >> 13) & 1U)) >> 13);
}

inline void gradred_store_flag(unsigned* flag, unsigned value) {
  std::atomic_ref(*flag).store(value, std::memory_order_release);
}
inline unsigned gradred_load_flag(const unsigned* flag) {
  std::this_thread::yield();
  return std::atomic_ref(const_cast<unsigned&>(*flag)).load(std::memory_order_acquire);
}
// A block has one thread in the kernels that wait. Here it is delayed now and then.
inline void gradred_join_threads() {
  static std::atomic<unsigned> calls{static_cast<unsigned>(getpid())};
  if (calls++ * 2654435761U >> 29 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// A program's own operation, by the address of a function of two numbers.
#define GRADRED_USER_OP
inline thread_local void* gradred_user_address = nullptr;
template <class Number>
Number gradred_user_op(Number a, Number b) {
  return reinterpret_cast<Number (*)(Number, Number)>(gradred_user_address)(a, b);
}

#include "device/kernels/copies.cu"
#include "device/kernels/reduce.cu"
#include "device/kernels/shots.cu"

// The kernels by name, and their launches.
namespace gradred_kernels {

using Kernel = void (*)(Arguments);
struct Named {
  const char* name;
  Kernel kernel;
  void* user = nullptr;  // function of a user kernel
};

#define GRADRED_NAMED(element, operation, inputs) \
  {"gradred_" #element "_" #operation "_" #inputs, gradred_##element##_##operation##_##inputs}
#define GRADRED_NAMED_OPERATION(element, operation)                           \
  GRADRED_NAMED(element, operation, 0), GRADRED_NAMED(element, operation, 2), \
      GRADRED_NAMED(element, operation, 4), GRADRED_NAMED(element, operation, 8)
#define GRADRED_NAMED_ELEMENT(element)                                               \
  GRADRED_NAMED_OPERATION(element, sum), GRADRED_NAMED_OPERATION(element, prod),     \
      GRADRED_NAMED_OPERATION(element, min), GRADRED_NAMED_OPERATION(element, max),  \
      GRADRED_NAMED_OPERATION(element, scaled_sum), GRADRED_NAMED(element, user, 0), \
      GRADRED_NAMED(element, user, 2), GRADRED_NAMED(element, user, 4),
inline constexpr Named kKernels[] = {GRADRED_FOR_ELEMENTS(GRADRED_NAMED_ELEMENT)};

using Shots = void (*)(ShotArguments);
struct NamedShots {
  const char* name;
  Shots kernel;
  void* user = nullptr;
};

#define GRADRED_NAMED_SHOTS(element, operation)                                         \
  {"gradred_" #element "_" #operation "_one", gradred_##element##_##operation##_one}, { \
    "gradred_" #element "_" #operation "_two", gradred_##element##_##operation##_two    \
  }
#define GRADRED_ALL_NAMED_SHOTS(element)                                    \
  GRADRED_NAMED_SHOTS(element, sum), GRADRED_NAMED_SHOTS(element, prod),    \
      GRADRED_NAMED_SHOTS(element, min), GRADRED_NAMED_SHOTS(element, max), \
      GRADRED_NAMED_SHOTS(element, user),
inline constexpr NamedShots kShots[] = {GRADRED_FOR_ELEMENTS(GRADRED_ALL_NAMED_SHOTS)};

template <class Function, class Given>
void launch(Function kernel, unsigned blocks, unsigned threads, const Given& call) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kernel(call);
  }
}

}  // namespace gradred_kernels
