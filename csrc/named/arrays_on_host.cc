#include "named/arrays_on_host.h"

#include <algorithm>
#include <utility>

namespace gradred {

ArraysOnHost::ArraysOnHost(NamedOperation& operation) : operation_(operation) {
  for (std::size_t i = 0; i < operation.arrays().size(); ++i) {
    const NamedArray& array = operation.arrays()[i];
    DeviceMemory* const device = array.device();
    if (device == nullptr) continue;
    const std::size_t room = array.out.data == nullptr ? 0 : array.out_bytes;
    moved_.push_back({.index = i,
                      .given = array,
                      .stream = array.after.open_stream(),
                      .input = HostAllocation(*device, array.bytes()),
                      .result = HostAllocation(*device, room)});
  }
}

void ArraysOnHost::take_over() {
  for (Moved& moved : moved_) {
    NamedArray& array = operation_.arrays()[moved.index];
    array.in = {moved.input.data()};
    array.out = {moved.result.data()};
    array.on_device = false;
    array.after = {};
    moved.stream->copy(moved.input.data(), moved.given.in.data, moved.given.bytes());
  }
}

bool ArraysOnHost::inputs_are_there() {
  return std::ranges::all_of(moved_, [](Moved& one) { return one.stream->ready(); });
}

bool ArraysOnHost::results_are_there() {
  if (!std::exchange(copies_results_, true)) {
    for (Moved& one : moved_) {
      if (!operation_.arrays()[one.index].filled) continue;
      one.stream->copy(one.given.out.data, one.result.data(), one.given.out_bytes);
    }
  }
  return std::ranges::all_of(moved_, [](Moved& one) { return one.stream->ready(); });
}

bool ArraysOnHost::settle() noexcept {
  return std::ranges::all_of(moved_, [](Moved& one) { return one.stream->settle(); });
}

}  // namespace gradred
