#include "comm/node_call.h"

#include "comm/scheduled.h"

namespace gradred {

NodeCall node_call(const Call& call) {
  return {.kind = call.kind,
          .send = call.in.data,
          .recv = call.out.data,
          .count = call.count,
          .element = size_of(call.dtype),
          .reduce = find_reduction(call.op, call.dtype),
          .root = call.root,
          .signature = call.signature(),
          .splits = call.splits,
          .flow = call.flow(),
          .device = call.flow() != nullptr ? call.flow()->device() : nullptr};
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
