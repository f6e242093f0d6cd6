// Compares the GPU kernels, compiled by g++, with the functions of csrc/reduce. The results must
// match bit for bit, for all types, operations and numbers of inputs.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/types.h"
#include "expect.h"
#include "kernels_on_host.h"
#include "reduce/reduce.h"

namespace gradred::testing {
namespace {

using gradred_kernels::Arguments;

constexpr DType kTypes[] = {DType::kFloat8E4M3FN, DType::kFloat8E5M2, DType::kFloat16,
                            DType::kBFloat16,     DType::kFloat32,    DType::kFloat64,
                            DType::kInt32,        DType::kInt64,      DType::kUInt8};
constexpr Op kOps[] = {Op::kSum, Op::kProd, Op::kMin, Op::kMax};

gradred_kernels::Kernel find(const std::string& name) {
  for (const auto& [known, kernel, user] : gradred_kernels::kKernels) {
    if (name == known) return kernel;
  }
  expect(false, "no kernel " + name);
  return nullptr;
}

// Random bits, including the limits of ranges, infinities, zeros of both signs and NaN.
class Vectors {
 public:
  Vectors(std::size_t vectors, std::size_t bytes, std::size_t offset, std::size_t apart)
      : offset_(offset), apart_(apart), bytes_(bytes) {
    for (std::size_t i = 0; i < vectors; ++i) {
      rows_.emplace_back(bytes / 16 + 16);
      auto* const at = reinterpret_cast<unsigned char*>(rows_.back().data());
      const std::size_t size = rows_.back().size() * 16;
      for (std::size_t b = 0; b < size; b += 2) {
        const std::uint64_t drawn = random()();
        at[b] = byte_of(static_cast<std::uint32_t>(drawn));
        at[b + 1] = byte_of(static_cast<std::uint32_t>(drawn >> 32));
      }
    }
  }
  std::byte* at(std::size_t i) {
    return reinterpret_cast<std::byte*>(rows_[i].data()) + offset_ + (i % 2) * apart_;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  struct alignas(16) Sixteen {
    std::byte bytes[16];
  };
  static unsigned char byte_of(std::uint32_t drawn) {
    static constexpr unsigned char kEdges[] = {0x00, 0x80, 0x7f, 0xff, 0x7c, 0xfc, 0x3c, 0xf0};
    return drawn % 3 == 0 ? kEdges[(drawn >> 8) % 8] : static_cast<unsigned char>(drawn >> 16);
  }
  static std::mt19937_64& random() {
    static std::mt19937_64 only(7);
    return only;
  }
  std::size_t offset_, apart_, bytes_;
  std::vector<std::vector<Sixteen>> rows_;
};

// `apart`: additional elements before every second vector.
void same_bits(DType dtype, Op op, unsigned inputs, bool any, std::size_t count, std::size_t offset,
               std::size_t apart, bool in_place) {
  const std::size_t element = size_of(dtype);
  Vectors vectors(inputs + 2, count * element, offset * element, apart * element);
  std::vector<const void*> given;
  Arguments call{};
  for (unsigned i = 0; i < inputs; ++i) {
    given.push_back(vectors.at(i));
    call.inputs[i] = vectors.at(i);
  }
  std::vector<std::byte> wanted(count * element + 1);
  find_reduction(op, dtype)->many(wanted.data(), given.data(), inputs, count);
  const unsigned target = in_place ? inputs / 2 : inputs;
  std::byte* const targets[] = {vectors.at(target), vectors.at(in_place ? 0 : inputs + 1)};
  const std::byte before = targets[0][-1], behind = targets[0][count * element];
  call.written = (count + inputs) % 2 + 1;
  std::ranges::copy(targets, call.targets);
  call.count = count;
  call.k = inputs;
  const std::string name = "gradred_" + std::string(name_of(dtype)) + "_" +
                           std::string(name_of(op)) + "_" + std::to_string(any ? 0 : inputs);
  launch(find(name), 3, 5, call);
  const std::string what = name + " of " + std::to_string(inputs) + " x " + std::to_string(count) +
                           " from " + std::to_string(offset) + ", apart by " +
                           std::to_string(apart) + (in_place ? ", in place" : "");
  for (unsigned i = 0; i < call.written; ++i) {
    expect(std::memcmp(targets[i], wanted.data(), count * element) == 0, what + " has other bits");
  }
  expect(targets[0][-1] == before && targets[0][count * element] == behind,
         what + " writes elsewhere");
}

void all_of_a_type(DType dtype) {
  for (const Op op : kOps) {
    for (const unsigned inputs : {2U, 3U, 4U, 5U, 8U, 9U, 32U}) {
      for (const std::size_t count : {0, 1, 5, 16, 257, 1031}) {
        for (const std::size_t offset : {16, 17, 18}) {
          for (const std::size_t apart : {0, 1}) {
            const bool in_place = (count + offset) % 2 == 1;
            same_bits(dtype, op, inputs, true, count, offset, apart, in_place);
            if (inputs != 2 && inputs != 4 && inputs != 8) continue;
            same_bits(dtype, op, inputs, false, count, offset, apart, in_place);
          }
        }
      }
    }
  }
}

// A value so small that sums of eight values are exact.
unsigned small_number(DType dtype, unsigned i) {
  const float number = static_cast<float>(i % 9), smaller = static_cast<float>(i % 3);
  switch (dtype) {
    case DType::kFloat8E4M3FN:
      return gradred_kernels::float8_e4m3fn::narrow(smaller);
    case DType::kFloat8E5M2:
      return gradred_kernels::float8_e5m2::narrow(smaller);
    case DType::kFloat16:
      return gradred_to_half(number);
    default:
      return __float_as_uint(number) >> 16;
  }
}

// If a sum were rounded to the type before it is scaled, the result would differ. So the sums here
// are exact. Floats of 8 and 16 bits get small integers.
void scaled(DType dtype) {
  constexpr std::size_t kCount = 301;
  const std::size_t element = size_of(dtype);
  const bool narrow = element <= 2 && dtype != DType::kUInt8;
  for (const unsigned inputs : {1U, 2U, 3U, 4U, 8U}) {
    for (const bool divide : {false, true}) {
      if (divide && is_integer(dtype)) continue;
      for (const double factor : {0.5, 3.0, -1.75, -2.0, 0.0, 4294967297.0, 1e30}) {
        Vectors vectors(inputs + 1, kCount * element, 16, 0);
        Arguments call{};
        std::vector<const void*> given;
        for (unsigned i = 0; i < inputs; ++i) {
          std::byte* const at = vectors.at(i);
          for (std::size_t e = 0; narrow && e < kCount; ++e) {
            const unsigned bits = small_number(dtype, static_cast<unsigned>(e));
            std::memcpy(at + e * element, &bits, element);
          }
          given.push_back(at);
          call.inputs[i] = at;
        }
        std::vector<std::byte> wanted(kCount * element);
        find_reduction(Op::kSum, dtype)->many(wanted.data(), given.data(), inputs, kCount);
        scale(wanted.data(), kCount, dtype, factor, divide);
        call.targets[0] = vectors.at(inputs);
        call.written = 1;
        call.count = kCount;
        call.k = inputs;
        call.factor = factor;
        call.divide = divide;
        const bool any = inputs == 1 || inputs == 3;
        const std::string name = "gradred_" + std::string(name_of(dtype)) + "_scaled_sum_" +
                                 std::to_string(any ? 0 : inputs);
        launch(find(name), 2, 7, call);
        expect(std::memcmp(vectors.at(inputs), wanted.data(), wanted.size()) == 0,
               name + " by " + std::to_string(factor) + " has other bits");
      }
    }
  }
}

}  // namespace
}  // namespace gradred::testing

int main() {
  for (const gradred::DType dtype : gradred::testing::kTypes) {
    gradred::testing::all_of_a_type(dtype);
    gradred::testing::scaled(dtype);
  }
  return gradred::testing::report("kernels_test");
}
