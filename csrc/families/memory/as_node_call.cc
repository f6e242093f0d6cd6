#include "families/memory/as_node_call.h"

#include "base/flow.h"
#include "reduce/reduce.h"

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

}  // namespace gradred
