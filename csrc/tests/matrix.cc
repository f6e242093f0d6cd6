// Runs every algorithm on threads and compares with a plain loop. It covers many sizes, counts,
// types, slices and transports, and both kinds of memory. It needs neither Python nor MPI, so that
// it can run under the sanitizers.
//   matrix            a small sweep: each case with one of the types and ops, in turn
//   matrix --full     each case with all types and ops
//   matrix --only TEXT --repeat N
//                     the cases on a device whose description contains TEXT, N times: each time
//                     with other types, buffers, delays and orders
//   matrix --mutant M a faulty executor: "touches" accesses device memory from the host, "hurries"
//                     continues before the device is ready. The sweep starts both itself and
//                     requires that they fail.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "matrix_case.h"

namespace gradred {
namespace {

// The sets of parameters to test for an algorithm on `size` ranks.
std::vector<Parameters> parameters_of(const Algorithm& algorithm, int size, bool full) {
  const auto takes = [&](std::string_view name) {
    return algorithm.parameters.find(name) != std::string_view::npos;
  };
  std::vector<Parameters> result;
  if (takes("local")) {
    for (int local = 1; local <= size; ++local) {
      const bool extreme = local == 1 || local == size;
      if (size % local != 0 || (!full && extreme && size >= 4)) continue;
      result.emplace_back().local = local;
      if (takes("root")) result.back().root = size - 1;
    }
  } else if (takes("root")) {
    for (int root = full ? 0 : size - 1; root < size; ++root) {
      result.emplace_back().root = root;
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

// Every algorithm on memory that no host thread may access. All other settings are drawn.
template <class Function>
void for_each_case_on_a_device(bool full, unsigned seed, Function function) {
  constexpr Protocol kEager = Protocol::kEager, kRendezvous = Protocol::kRendezvous;
  const FaultSpec late = parse_fault("*:*:*:delay:1");
  std::minstd_rand random(seed);
  const auto draw = [&](std::size_t choices) { return random() / 7 % choices; };
  for (const Algorithm& algorithm : algorithms()) {
    for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
      for (const Parameters& parameters : parameters_of(algorithm, size, full)) {
        const auto p = static_cast<std::size_t>(size);
        for (const std::size_t count : {std::size_t{0}, p + 1, std::size_t{1009}}) {
          const Case base{&algorithm, parameters, size, count, 1, kRendezvous, {}, true};
          std::vector<Case> ways(6, base);
          ways[1].protocol = ways[3].protocol = kEager;
          ways[2].staged = ways[3].staged = true;
          ways[4].fault = late;
          ways[5].traced = true;
          const std::size_t drawn = draw(ways.size());
          for (std::size_t way = 0; way < ways.size(); ++way) {
            if (!full && way != drawn) continue;
            Case& c = ways[way];
            c.slices = 1 + 2 * draw(2);
            c.where = draw(2) == 0 ? Where::kDevice : Where::kMixed;
            c.in_place = draw(2) == 0;
            c.types = kCombinations[draw(std::size(kCombinations))];
            function(c);
          }
        }
      }
    }
  }
}

// Whether all cases succeed with this faulty executor, though they should not. A host access to a
// device address ends the process.
bool run_mutant(std::string_view mutant) {
  testing::LateMemory device({.says_ready = mutant == "hurries"});
  bool all_well = true;
  for_each_case_on_a_device(false, 1, [&](const Case& c) {
    if (c.size < 3 || c.count < 10 || c.where != Where::kDevice || c.fault) return;
    if (all_well) all_well = run(c, device, mutant == "touches").empty();
  });
  return all_well;
}

// Whether the mutant fails in a process of its own.
bool is_found(const char* mutant) {
  char program[] = "/proc/self/exe", option[] = "--mutant";
  std::string name(mutant);
  char* arguments[] = {program, option, name.data(), nullptr};
  posix_spawn_file_actions_t quiet;  // it fails with long messages
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  int status = 0;
  check(posix_spawn(&child, program, &quiet, nullptr, arguments, environ) == 0, "no process");
  posix_spawn_file_actions_destroy(&quiet);
  check(waitpid(child, &status, 0) == child, "no child");
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Counts and reports results.
class Tally {
 public:
  void add(const std::string& name, const std::string& trouble) {
    ++(trouble.empty() ? passed_ : failed_);
    if (trouble.empty()) return;
    std::printf("FAILED %s: %s\n", name.c_str(), trouble.c_str());
    std::fflush(stdout);  // a sweep takes long
  }
  void add(const Case& c, testing::LateMemory& device) { add(describe(c), run(c, device)); }
  void add(const testing::LateMemory& device) {
    add("memory", device.allocations() == 0 ? "" : "something of the device was not given back");
    operations_ += device.operations();
  }
  int print() const {
    std::printf("%zu passed, %zu failed; %llu operations on the device\n", passed_, failed_,
                static_cast<unsigned long long>(operations_));
    return failed_ == 0 && passed_ > 0 ? 0 : 1;
  }

 private:
  std::size_t passed_ = 0, failed_ = 0;
  std::uint64_t operations_ = 0;
};

int sweep(bool full) {
  Tally tally;
  testing::LateMemory device;
  const auto try_case = [&](const Case& c) { tally.add(c, device); };
  for_each_case(full, try_case);
  for_each_case_on_a_device(full, 1, try_case);
  tally.add(device);
  for (const char* mutant : {"touches", "hurries"}) {
    tally.add(std::string("mutant that ") + mutant, is_found(mutant) ? "" : "nobody noticed");
  }
  return tally.print();
}

int repeat(const std::string& text, unsigned times) {
  constexpr std::uint64_t kDelaysNs[] = {0, 1'000, 5'000, 50'000, 200'000};
  Tally tally;
  for (unsigned seed = 1; seed <= times; ++seed) {
    testing::LateMemory device(
        {.seed = seed, .longest_delay_ns = kDelaysNs[seed % std::size(kDelaysNs)]});
    for_each_case_on_a_device(true, seed, [&](const Case& c) {
      if (describe(c).find(text) != std::string::npos) tally.add(c, device);
    });
    tally.add(device);
  }
  return tally.print();
}

}  // namespace
}  // namespace gradred

int main(int argc, char** argv) {
  using namespace gradred;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::size_t given = arguments.size();
  if (given == 2 && arguments[0] == "--mutant") return run_mutant(arguments[1]) ? 0 : 1;
  if (given == 4 && arguments[0] == "--only" && arguments[2] == "--repeat") {
    return repeat(arguments[1], static_cast<unsigned>(std::stoul(arguments[3])));
  }
  if (given > 1 || (given == 1 && arguments[0] != "--full")) {
    std::fprintf(stderr, "usage: %s [--full | --only TEXT --repeat N | --mutant NAME]\n", argv[0]);
    return 2;
  }
  return sweep(given == 1);
}
