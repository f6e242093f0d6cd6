#include "calls/scaling.h"

#include "reduce/reduce.h"

namespace gradred {

void scale_input(const Call& call, void* data, std::size_t count) {
  if (call.op == Op::kPremul) scale(data, count, call.dtype, call.factor, false);
}

void scale_result(const Call& call, void* data, std::size_t count, int size) {
  if (call.op == Op::kAvg) scale(data, count, call.dtype, size, true);
}

const void* scaled_input(const Call& call, int size, std::vector<std::byte>& storage) {
  const bool blocks = call.kind == Kind::kReduceScatterBlock;
  const std::size_t count = call.count * (blocks ? static_cast<std::size_t>(size) : 1);
  const auto* input = static_cast<const std::byte*>(call.input());
  storage.assign(input, input + count * size_of(call.dtype));
  scale_input(call, storage.data(), count);
  return storage.data();
}

}  // namespace gradred
