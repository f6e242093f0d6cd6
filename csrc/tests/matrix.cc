// Runs every algorithm on threads, for many sizes, counts, types, slices and both protocols, and
// compares with a plain loop. Meant for the sanitizers: it needs neither Python nor an MPI.
//   matrix          a small sweep: each case with one of the types and ops, in turn
//   matrix --full   each case with all of them
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "engine/on_threads.h"
#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/partition.h"

namespace gradred {
namespace {

struct Combination {
  DType dtype;
  Op op;
};

// Integers whose results are exact in every order: sums stay below 64, products at 2^8.
constexpr Combination kCombinations[] = {
    {DType::kFloat32, Op::kSum}, {DType::kInt32, Op::kProd},   {DType::kFloat64, Op::kMax},
    {DType::kUInt8, Op::kSum},   {DType::kFloat64, Op::kProd}, {DType::kInt32, Op::kMin},
};

struct Case {
  const Algorithm* algorithm;
  Parameters parameters;
  int size;
  std::size_t count;
  std::size_t slices;
  Protocol protocol;
  Combination types;
  bool in_place;
};

std::string describe(const Case& c) {
  return std::string(name_of(c.algorithm->collective)) + " " + std::string(c.algorithm->name) +
         " p=" + std::to_string(c.size) + " count=" + std::to_string(c.count) +
         " slices=" + std::to_string(c.slices) + " root=" + std::to_string(c.parameters.root) +
         " local=" + std::to_string(c.parameters.local) + " k=" + std::to_string(c.parameters.k) +
         (c.protocol == Protocol::kRendezvous ? " rendezvous " : " eager ") +
         std::string(name_of(c.types.dtype)) + " " + std::string(name_of(c.types.op)) +
         (c.in_place ? "" : " from its input");
}

// Elements as doubles, which hold all values used here.
template <class T>
void put(std::byte* data, std::size_t index, double value) {
  const T element = static_cast<T>(value);
  std::memcpy(data + index * sizeof(T), &element, sizeof(T));
}

template <class T>
double get(const std::byte* data, std::size_t index) {
  T element;
  std::memcpy(&element, data + index * sizeof(T), sizeof(T));
  return static_cast<double>(element);
}

struct Access {
  void (*put)(std::byte* data, std::size_t index, double value);
  double (*get)(const std::byte* data, std::size_t index);
};

Access access(DType dtype) {
  if (dtype == DType::kFloat32) return {put<float>, get<float>};
  if (dtype == DType::kFloat64) return {put<double>, get<double>};
  if (dtype == DType::kInt32) return {put<std::int32_t>, get<std::int32_t>};
  return {put<std::uint8_t>, get<std::uint8_t>};
}

double input_of(const Case& c, int rank, std::size_t index) {
  const std::size_t mixed = index * 7 + static_cast<std::size_t>(rank) * 5 + index / 11;
  return static_cast<double>(c.types.op == Op::kProd ? 1 + mixed % 2 : mixed % 8);
}

double combine(Op op, double a, double b) {
  if (op == Op::kSum) return a + b;
  if (op == Op::kProd) return a * b;
  return op == Op::kMin ? std::min(a, b) : std::max(a, b);
}

double reduction(const Case& c, std::size_t index) {
  double result = input_of(c, 0, index);
  for (int rank = 1; rank < c.size; ++rank) {
    result = combine(c.types.op, result, input_of(c, rank, index));
  }
  return result;
}

// The rank that owns each element, by the definition in schedule.h, in each slice for itself.
std::vector<int> owners(const Case& c, std::uint32_t chunks) {
  std::vector<int> result(c.count);
  const Partition parts{c.count, c.slices};
  for (std::size_t slice = 0; slice < c.slices; ++slice) {
    const Partition partition{parts.length(slice), chunks};
    for (int rank = 0; rank < c.size; ++rank) {
      const std::size_t each = chunks / static_cast<std::size_t>(c.size);
      const std::size_t first = static_cast<std::size_t>(rank) * each;
      const std::size_t begin = parts.begin(slice) + partition.begin(first);
      std::fill_n(result.begin() + static_cast<std::ptrdiff_t>(begin),
                  partition.length(first, each), rank);
    }
  }
  return result;
}

// What one case needs: a schedule, an input and a work buffer for each rank. Whoever has no input
// holds 99s, as does a work buffer that is not to hold the input.
struct Setting {
  explicit Setting(const Case& c) : bytes(c.count * size_of(c.types.dtype)) {
    const Collective collective = c.algorithm->collective;
    for (int rank = 0; rank < c.size; ++rank) {
      Schedule made = make_schedule(collective, c.algorithm->name, rank, c.size, c.parameters);
      schedules.push_back(c.in_place ? std::move(made) : from_input(std::move(made)));
    }
    const bool owned =
        collective == Collective::kReduceScatter || collective == Collective::kAllgather;
    if (owned) owner = owners(c, schedules[0].chunks);
    for (int rank = 0; rank < c.size; ++rank) {
      std::vector<std::byte>& data = inputs.emplace_back(bytes);
      for (std::size_t i = 0; i < c.count; ++i) {
        const bool given = (collective != Collective::kBcast || rank == c.parameters.root) &&
                           (collective != Collective::kAllgather || rank == owner[i]);
        access(c.types.dtype).put(data.data(), i, given ? input_of(c, rank, i) : 99);
      }
      work.push_back(data);
      for (std::size_t i = 0; !c.in_place && i < c.count; ++i) {
        access(c.types.dtype).put(work.back().data(), i, 99);
      }
    }
  }

  std::size_t bytes;
  std::vector<Schedule> schedules;
  std::vector<std::vector<std::byte>> inputs, work;
  std::vector<int> owner;  // of each element; reduce-scatter and allgather only
};

double expected(const Case& c, const Setting& setting, std::size_t index) {
  if (c.algorithm->collective == Collective::kBcast) return input_of(c, c.parameters.root, index);
  if (c.algorithm->collective == Collective::kAllgather) {
    return input_of(c, setting.owner[index], index);
  }
  return reduction(c, index);
}

// Empty, or the first difference.
std::string compare(const Case& c, const Setting& setting) {
  for (std::size_t i = 0; i < c.count; ++i) {
    const double wanted = expected(c, setting, i);
    for (int rank = 0; rank < c.size; ++rank) {
      const bool anything =
          c.algorithm->collective == Collective::kReduceScatter && setting.owner[i] != rank;
      const std::vector<std::byte>& data = setting.work[static_cast<std::size_t>(rank)];
      const double found = access(c.types.dtype).get(data.data(), i);
      if (!anything && found != wanted) {
        return "rank " + std::to_string(rank) + " element " + std::to_string(i) + " is " +
               std::to_string(found) + ", not " + std::to_string(wanted);
      }
    }
  }
  return {};
}

// Large vectors are there to overlap in time; in the small sweep one way of running them is enough.
bool is_small(const Case& c) {
  return c.count < 10000 || (c.slices > 1 && c.protocol == Protocol::kRendezvous);
}

constexpr std::byte kNowhere{};  // an empty input has an address, too

// Empty, or what went wrong.
std::string run(const Case& c) {
  try {
    Setting setting(c);
    const std::vector<std::vector<std::byte>> inputs = setting.inputs;
    ThreadsRun run;
    for (int rank = 0; rank < c.size; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      run.schedules.push_back(&setting.schedules[r]);
      run.buffers.push_back({setting.work[r].data(), c.count, c.types.dtype});
      if (!c.in_place) run.inputs.push_back(c.count > 0 ? setting.inputs[r].data() : &kNowhere);
    }
    run.op = c.types.op;
    run.slices = c.slices;
    run.protocol = c.protocol;
    run_on_threads(run);
    return setting.inputs == inputs ? compare(c, setting) : "an input has been changed";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// The parameters worth trying for an algorithm on `size` ranks.
std::vector<Parameters> parameters_of(const Algorithm& algorithm, int size, bool full) {
  const auto takes = [&](std::string_view name) {
    return algorithm.parameters.find(name) != std::string_view::npos;
  };
  std::vector<Parameters> result;
  if (takes("root")) {
    for (int root = full ? 0 : size - 1; root < size; ++root) {
      result.emplace_back().root = root;
    }
  } else if (takes("local")) {
    for (int local = 1; local <= size; ++local) {
      const bool extreme = local == 1 || local == size;
      if (size % local == 0 && (full || !extreme || size < 4)) result.emplace_back().local = local;
    }
  } else if (takes("k")) {
    for (int k = full ? 2 : 3; k <= 4; ++k) result.emplace_back().k = k;
  } else {
    result.emplace_back();
  }
  return result;
}

std::vector<std::size_t> counts_of(int size) {
  const auto p = static_cast<std::size_t>(size);
  std::vector<std::size_t> counts = {0, 1, p - 1, p, p + 1, 1009};
  if (size == 3 || size == 8) counts.push_back(100003);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

template <class Function>
void for_each_case(bool full, Function function) {
  std::size_t turn = 0;
  for (const Algorithm& algorithm : algorithms()) {
    for (const int size : {1, 2, 3, 4, 5, 7, 8}) {
      for (const Parameters& parameters : parameters_of(algorithm, size, full)) {
        for (const std::size_t count : counts_of(size)) {
          for (const std::size_t slices : {std::size_t{1}, std::size_t{3}}) {
            for (const Protocol protocol : {Protocol::kEager, Protocol::kRendezvous}) {
              Case c{&algorithm, parameters, size, count, slices, protocol, {}, true};
              if (!full && !is_small(c)) continue;
              constexpr std::size_t kAll = std::size(kCombinations);
              for (std::size_t i = 0; i < (full ? kAll : 1); ++i) {
                c.types = kCombinations[turn % kAll];
                for (const bool in_place : {true, false}) {
                  c.in_place = in_place;
                  if (full || (turn / kAll % 2 == 0) == in_place) function(c);
                }
                ++turn;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradred

int main(int argc, char** argv) {
  const bool full = argc == 2 && std::string_view(argv[1]) == "--full";
  if (argc > 1 && !full) {
    std::fprintf(stderr, "usage: %s [--full]\n", argv[0]);
    return 2;
  }
  std::size_t passed = 0, failed = 0;
  gradred::for_each_case(full, [&](const gradred::Case& c) {
    const std::string trouble = gradred::run(c);
    ++(trouble.empty() ? passed : failed);
    if (!trouble.empty()) std::printf("FAILED %s: %s\n", describe(c).c_str(), trouble.c_str());
  });
  std::printf("%zu passed, %zu failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
