// What a kernel of reduce.cu is given, for who launches it, too.
#pragma once

namespace gradred_kernels {

using u64 = unsigned long long;

constexpr unsigned kMostInputs = 32;  // of one launch; as many targets

struct Arguments {
  void* targets[kMostInputs];  // each gets the result; an element of all inputs is read before that
  const void* inputs[kMostInputs];
  u64 count;         // elements; all addresses are multiples of an element
  double factor;     // of kernels that scale
  unsigned written;  // targets, at least 1
  unsigned k;        // inputs, of kernels for any number: at least 2, or 1 where they scale
  unsigned divide;   // instead of multiplying by the factor
};

}  // namespace gradred_kernels
