// The pointer cache on the simulated driver. It tests all kinds of allocation and release, and new
// memory at the same addresses.
#include "device/driver/pointer_cache.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "node_calls.h"
#include "user.h"

namespace gradred::testing {
namespace {

using device::Address;
using device::Driver;
using device::Kind;
using device::PointerCache;
using device::PointerInfo;

constexpr std::size_t kPage = 4096;

const Driver& driver() { return Driver::load(kSimulated); }

PointerInfo find(PointerCache& cache, Address address) { return cache.find(pointer_to(address)); }

void host_memory_is_asked_for_each_time(BoardBootstrap&) {
  const User user;
  PointerCache cache(driver());
  const int array[4] = {};
  expect(cache.find(array).kind == Kind::kHost, "before cuInit");
  user.make_current();
  expect(cache.find(array).kind == Kind::kHost && !cache.find(array).pinned, "the stack");
  void* pinned = nullptr;
  user.must("cuMemHostAlloc", &pinned, kPage, 0U);
  expect(cache.find(pinned).kind == Kind::kHost && cache.find(pinned).pinned, "pinned memory");
  expect(cache.counts().hits == 0, "none of this is kept");
  const Address memory = user.allocate(kPage);
  expect(find(cache, memory).kind == Kind::kDevice, "what is allocated later is known");
}

void memory_is_known_by_its_range(BoardBootstrap&) {
  const User user;
  user.make_current();
  PointerCache cache(driver());
  const Address memory = user.allocate(3 * kPage), other = user.allocate(kPage);
  const PointerInfo found = find(cache, memory + 5);
  expect(found.kind == Kind::kDevice && found.device == 0 && found.ipc_capable &&
             found.context == driver().current(),
         "what the driver says");
  expect(found.begin == memory && found.bytes == 3 * kPage, "its range");
  expect(found.holds(memory, 3 * kPage) && !found.holds(memory + 1, 3 * kPage), "what it holds");
  expect(find(cache, memory + 3 * kPage - 1) == found, "its last byte");
  expect(cache.counts().hits == 1 && cache.counts().misses == 1, "one miss, one hit");
  expect(find(cache, other).buffer_id != found.buffer_id, "another allocation");
}

void other_memory_at_the_same_address_is_seen(BoardBootstrap&) {
  const User user;
  user.make_current();
  PointerCache cache(driver());
  PointerInfo last;
  for (const std::size_t pages : {2U, 2U, 1U, 3U}) {
    const Address memory = user.allocate(pages * kPage);
    const PointerInfo found = find(cache, memory);
    expect(last.begin == 0 || found.begin == last.begin, "the driver gives the same address again");
    expect(found.buffer_id != last.buffer_id && found.bytes == pages * kPage, "new memory");
    user.free(memory);
    last = found;
  }
  expect(cache.counts().stale == 3, "each is found stale once");
  expect(find(cache, last.begin).kind == Kind::kHost, "freed memory is not memory");
}

// Memory at the addresses of freed memory is found as fast as any other memory.
void freed_memory_stands_in_nobodys_way(BoardBootstrap&) {
  const User user;
  user.make_current();
  PointerCache cache(driver());
  const Address memory = user.allocate(2 * kPage);
  find(cache, memory);
  user.free(memory);
  expect(user.allocate(kPage) == memory && user.allocate(kPage) == memory + kPage, "in its place");
  for (int turn = 0; turn < 2; ++turn) {
    find(cache, memory);
    find(cache, memory + kPage);
  }
  expect(cache.counts().hits == 2, std::to_string(cache.counts().hits) + " hits");
}

void pools_are_seen_and_not_exported(BoardBootstrap&) {
  const User user;
  user.make_current();
  PointerCache cache(driver());
  const Address memory = user.allocate_in_pool(kPage);
  const PointerInfo found = find(cache, memory);
  expect(found.kind == Kind::kDevice && !found.ipc_capable && found.context == nullptr, "a pool's");
  expect(find(cache, memory + 1) == found && cache.counts().hits == 1, "kept");
  user.free_in_pool(memory);
  expect(user.allocate_in_pool(kPage) == memory, "the same address");
  expect(find(cache, memory).buffer_id != found.buffer_id, "other memory");
}

// Drivers report the range of memory only in a context of its device.
void ranges_are_known_in_every_thread(BoardBootstrap&) {
  setenv("SIMULATED_CUDA_DEVICES", "2", 1);
  const User user;
  user.make_current();
  for (const Address memory : {user.allocate(kPage), user.allocate_in_pool(kPage)}) {
    for (const int other : {-1, 1}) {
      std::thread([&] {
        if (other >= 0) user.make_current(other);
        PointerCache cache(driver());
        expect(find(cache, memory).bytes == kPage && find(cache, memory).begin == memory, "found");
        expect(cache.counts().hits == 1, "and kept");
      }).join();
    }
  }
}

void what_a_driver_does_not_know_is_the_hosts(BoardBootstrap&) {
  const User user;
  user.make_current();
  PointerCache cache(driver());
  const int array[4] = {};
  for (const int code : {1, 201}) {
    user.fail("cuPointerGetAttributes", code);
    expect(cache.find(array).kind == Kind::kHost, "code " + std::to_string(code));
  }
  user.fail("cuPointerGetAttributes", 700);
  expect(!message_of<DeviceError>([&] { cache.find(array); }).empty(), "a lost device");
}

void managed_memory_is_a_kind_of_its_own(BoardBootstrap&) {
  const User user;
  user.make_current();
  PointerCache cache(driver());
  const Address memory = user.allocate_managed(kPage);
  expect(find(cache, memory).kind == Kind::kManaged && find(cache, memory).device == 0, "managed");
}

// Like PyTorch's expandable segments: one range of addresses, where chunks are mapped and unmapped.
void mapped_chunks_are_known_one_by_one(BoardBootstrap&) {
  const User user;
  user.make_current();
  PointerCache cache(driver());
  Address range = 0;
  std::array<std::uint64_t, 3> chunks{};
  user.must("cuMemAddressReserve", &range, 4 * kPage, std::size_t{0}, Address{0}, std::uint64_t{0});
  const void* const none = nullptr;
  for (auto& one : chunks) user.must("cuMemCreate", &one, kPage, none, std::uint64_t{0});
  const auto map = [&](std::size_t page, std::uint64_t chunk) {
    user.must("cuMemMap", range + page * kPage, kPage, std::size_t{0}, chunk, std::uint64_t{0});
    user.must("cuMemSetAccess", range + page * kPage, kPage, none, std::size_t{1});
  };
  map(0, chunks[0]);
  map(1, chunks[1]);
  const PointerInfo first = find(cache, range), second = find(cache, range + kPage);
  expect(first.kind == Kind::kDevice && !first.ipc_capable && first.context == nullptr, "a chunk");
  expect(first.bytes == kPage && second.begin == range + kPage, "chunks, not the range");
  expect(first.buffer_id != second.buffer_id && !first.holds(range, kPage + 1), "two chunks");
  expect(find(cache, range + 3 * kPage).kind == Kind::kHost, "where nothing is mapped");
  expect(find(cache, range + 1) == first && find(cache, range + kPage + 1) == second, "both kept");
  user.must("cuMemUnmap", range + kPage, kPage);
  expect(find(cache, range + kPage).kind == Kind::kHost, "what is unmapped");
  map(1, chunks[2]);
  expect(find(cache, range + kPage).buffer_id != second.buffer_id, "another chunk");
  expect(find(cache, range) == first, "its neighbour is the same");
}

// The simulated driver catches a cache that does not check its entries.
void a_stale_answer_is_caught(BoardBootstrap&) {
  const User user;
  user.make_current();
  const Address memory = user.allocate(2 * kPage);
  const PointerInfo kept = device::ask(driver(), memory);
  user.free(memory);
  expect(user.allocate(kPage) == memory, "the same address");
  expect(device::ask(driver(), memory) != kept, "another answer");
}

void no_order_of_allocations_leads_to_a_wrong_answer(BoardBootstrap&) {
  const User user;
  user.make_current();
  PointerCache cache(driver());
  std::mt19937 draw(5);
  struct Allocated {
    std::size_t bytes;
    bool pool;
  };
  std::map<Address, Allocated> alive;
  std::vector<Address> known;
  for (int turn = 0; turn < 3000; ++turn) {
    if (alive.size() < 24 && draw() % 2 == 0) {
      const std::size_t bytes = (1 + draw() % 4) * kPage;
      const bool pool = draw() % 3 == 0;
      const Address made = pool ? user.allocate_in_pool(bytes) : user.allocate(bytes);
      alive[made] = {bytes, pool};
      known.push_back(made);
    } else if (!alive.empty() && draw() % 3 == 0) {
      const auto one = std::next(alive.begin(), static_cast<long>(draw() % alive.size()));
      one->second.pool ? user.free_in_pool(one->first) : user.free(one->first);
      alive.erase(one);
    }
    if (known.empty()) continue;
    const Address asked = known[draw() % known.size()] + draw() % kPage;
    auto holder = alive.upper_bound(asked);
    const bool is_device =
        holder != alive.begin() && asked < (--holder)->first + holder->second.bytes;
    const PointerInfo found = find(cache, asked);
    expect(found == device::ask(driver(), asked), "turn " + std::to_string(turn));
    expect((found.kind == Kind::kDevice) == is_device, "turn " + std::to_string(turn));
    if (is_device) expect(found.begin == holder->first, "its own range");
  }
  const PointerCache::Counts& counts = cache.counts();
  expect(counts.hits > 500 && counts.stale > 50, "hits and stale entries both");
}

// The time of `call` in nanoseconds.
template <class Call>
double time_of(Call&& call) {
  constexpr int kTurns = 20'000;
  double best = 1e9;
  for (int turn = 0; turn < 10; ++turn) {
    const std::uint64_t begun = now_ns();
    for (int i = 0; i < kTurns; ++i) call();
    best = std::min(best, static_cast<double>(now_ns() - begun) / kTurns);
  }
  return best;
}

// Each hit includes one call to the driver. Only hardware can show how long a real one takes.
void a_hit_is_one_call_of_the_driver(BoardBootstrap&) {
  const User user;
  user.make_current();
  user.set("most_delay", 0);
  PointerCache cache(driver());
  std::array<Address, 8> memory{};
  for (Address& one : memory) one = user.allocate(kPage);
  std::size_t turn = 0;
  const double same = time_of([&] { find(cache, memory[0]); });
  const double others = time_of([&] { find(cache, memory[++turn % memory.size()]); });
  const int wanted[] = {device::kBufferId};
  std::uint64_t id = 0;
  void* values[] = {&id};
  const double call =
      time_of([&] { driver().call.PointerGetAttributes(1, wanted, values, memory[0]); });
  const double miss = time_of([&] { device::ask(driver(), memory[0]); });
  std::printf(
      "simulated driver: hit %.0f ns, in turn among 8 ranges %.0f ns, of which the driver's call "
      "%.0f ns; a miss %.0f ns\n",
      same, others, call, miss);
  std::fflush(stdout);  // ranks end without flushing
  constexpr int kRefused = 999;
  user.fail("cuPointerGetAttributes", kRefused, 1);  // the call after the next
  user.fail("cuMemGetAddressRange", kRefused);
  find(cache, memory[0]);
  bool second_fails = false;
  try {
    find(cache, memory[0]);
  } catch (const DeviceError&) {
    second_fails = true;
  }
  expect(second_fails, "a hit asks the driver once");
}

int run_all(const std::string& part) {
  Report report(part);
  const auto on = on_ranks(report, Ranks::kProcesses);
  const auto alone = [&](const char* name, const Body& body) { on(1, name, body); };
  alone("host_memory_is_asked_for_each_time", host_memory_is_asked_for_each_time);
  alone("memory_is_known_by_its_range", memory_is_known_by_its_range);
  alone("other_memory_at_the_same_address_is_seen", other_memory_at_the_same_address_is_seen);
  alone("freed_memory_stands_in_nobodys_way", freed_memory_stands_in_nobodys_way);
  alone("pools_are_seen_and_not_exported", pools_are_seen_and_not_exported);
  alone("ranges_are_known_in_every_thread", ranges_are_known_in_every_thread);
  alone("what_a_driver_does_not_know_is_the_hosts", what_a_driver_does_not_know_is_the_hosts);
  alone("managed_memory_is_a_kind_of_its_own", managed_memory_is_a_kind_of_its_own);
  alone("mapped_chunks_are_known_one_by_one", mapped_chunks_are_known_one_by_one);
  alone("a_stale_answer_is_caught", a_stale_answer_is_caught);
  alone("no_order_of_allocations_leads_to_a_wrong_answer",
        no_order_of_allocations_leads_to_a_wrong_answer);
  alone("a_hit_is_one_call_of_the_driver", a_hit_is_one_call_of_the_driver);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: pointer_cache_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
