#include "families/memory/scaling.h"

#include "reduce/reduce.h"

namespace gradred {

void scale_input(const Call& call, void* data, std::size_t count) {
  if (call.op == Op::kPremul) scale(data, count, call.dtype, call.factor, false);
}

void divide_or_make_truth(const Call& call, void* data, int rank, int size) {
  if (!reduces(call.kind)) return;
  const int inputs = reduced_ranks(call.kind, rank, size).count();
  if (inputs == 0) return;
  if (call.op == Op::kAvg) {
    scale(data, call.count, call.dtype, inputs, true);
  } else if (inputs == 1) {  // x or x is the truth of x
    find_reduction(Op::kLor, call.dtype)->pair(data, data, data, call.count);
  }
}

const void* scaled_input(const Call& call, int size, std::vector<std::byte>& storage) {
  const std::size_t count = call.count * given_counts(call.kind, {.size = size});
  const auto* input = static_cast<const std::byte*>(call.input());
  storage.assign(input, input + count * size_of(call.dtype));
  scale_input(call, storage.data(), count);
  return storage.data();
}

}  // namespace gradred
