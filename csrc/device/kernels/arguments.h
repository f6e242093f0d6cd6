// What a kernel of reduce.cu is given, for who launches it, too.
#pragma once

namespace gradred_kernels {

using u64 = unsigned long long;

constexpr unsigned kMostInputs = 32;  // of one launch

struct Arguments {
  void* target;  // not written before it is read, where it is one of the inputs
  const void* inputs[kMostInputs];
  u64 count;        // elements; all addresses are multiples of an element
  double factor;    // of kernels that scale
  unsigned k;       // inputs, of kernels for any number: at least 2, or 1 where they scale
  unsigned divide;  // instead of multiplying by the factor
};

}  // namespace gradred_kernels
