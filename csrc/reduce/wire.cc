#include "reduce/wire.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/errors.h"
#include "reduce/kernels/float_mode.h"
#include "reduce/kernels/kernel_table.h"

namespace gradred {
namespace {

const WireFunctions& functions_of(Wire wire, std::string_view isa) {
  const Kernels* const kernels = find_kernels(isa);
  if (kernels == nullptr) throw UsageError("no kernels for " + std::string(isa));
  return kernels->wires[static_cast<std::size_t>(wire) - 1];
}

}  // namespace

Wire wire_named(std::string_view name) {
  for (int number = 0; number <= static_cast<int>(Wire::kAuto); ++number) {
    if (name_of(static_cast<Wire>(number)) == name) return static_cast<Wire>(number);
  }
  throw UsageError("no wire is called " + std::string(name));
}

void encode_wire(Wire wire, const float* values, std::size_t count, std::byte* to) {
  encode_wire(wire, values, count, to, {});
}

void encode_wire(Wire wire, const float* values, std::size_t count, std::byte* to,
                 std::string_view isa) {
  const UsualFloatMode mode;
  const WireFunctions& functions = functions_of(wire, isa);
  const std::size_t whole = count / kWireBlock, rest = count % kWireBlock;
  functions.encode(values, whole, to);
  if (rest == 0) return;
  std::array<float, kWireBlock> last{};
  std::copy_n(values + whole * kWireBlock, rest, last.begin());
  functions.encode(last.data(), 1, to + whole * info_of(wire).block_bytes);
}

void decode_wire(Wire wire, const std::byte* from, std::size_t count, float* values, bool adds) {
  decode_wire(wire, from, count, values, adds, {});
}

void decode_wire(Wire wire, const std::byte* from, std::size_t count, float* values, bool adds,
                 std::string_view isa) {
  const UsualFloatMode mode;
  const WireFunctions& functions = functions_of(wire, isa);
  const std::size_t whole = count / kWireBlock, rest = count % kWireBlock;
  const auto decode = adds ? functions.add : functions.decode;
  decode(from, whole, values);
  if (rest == 0) return;
  std::array<float, kWireBlock> last{};
  float* const place = values + whole * kWireBlock;
  std::copy_n(place, rest, last.begin());
  decode(from + whole * info_of(wire).block_bytes, 1, last.data());
  std::copy_n(last.begin(), rest, place);
}

}  // namespace gradred
