// CUDA device memory behind the interface of csrc/memory, on the simulated driver.
#include "device/cuda_memory.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "node_calls.h"
#include "user.h"

namespace gradred::testing {
namespace {

using device::Address;
using device::CudaMemory;
using device::Driver;

const Driver& driver() { return Driver::load(kSimulated); }
CudaMemory& memory_at(Address address) {
  return CudaMemory::of(driver(), device::ask(driver(), address),
                        {kSimulated, {kSimulated}, {kSimulated}});
}

// Copies to the device and back, also in a thread without a context.
void copies_work_in_any_thread(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaMemory& memory = memory_at(user.allocate(64));
  expect(memory.name() == "CUDA device 0 (Simulated GPU 0)", memory.name());
  std::thread([&] {
    const std::vector<int> values(10'000, 7);
    const std::size_t bytes = values.size() * sizeof(int);
    Allocation there(Memory(memory), bytes);
    HostAllocation here(memory, bytes);
    std::memcpy(here.data(), values.data(), bytes);
    Stream stream{Memory(memory)};
    stream.copy(there.data(), here.data(), bytes);
    expect(stream.finish(), "a copy to the device");
    std::memset(here.data(), 0, bytes);
    stream.copy(here.data(), there.data(), bytes);
    expect(stream.finish(), "a copy from the device");
    expect(std::memcmp(here.data(), values.data(), bytes) == 0, "the same values");
  }).join();
}

// Pools and mapped chunks are used through the primary context, which the program has made.
void memory_without_a_context_is_the_primary_ones(BoardBootstrap&) {
  const User user;
  user.make_current();
  const Address plain = user.allocate(64), pooled = user.allocate_in_pool(64);
  expect(&memory_at(plain) == &memory_at(pooled), "one device, one memory");
}

void what_was_made_is_used_again(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaMemory& memory = memory_at(user.allocate(64));
  const auto use = [&] {
    HostAllocation here(memory, 100'000);
    Stream stream{Memory(memory)};
    Allocation there(Memory(memory), 100'000);
    stream.copy(there.data(), here.data(), 100'000);
    expect(stream.finish(), "a copy");
  };
  use();
  const std::array before{user.count("streams"), user.count("events"), user.count("pinned"),
                          user.count("bytes")};
  for (int time = 0; time < 20; ++time) use();
  const std::array after{user.count("streams"), user.count("events"), user.count("pinned"),
                         user.count("bytes")};
  expect(before == after, "nothing is made anew, and nothing of the device is kept");
}

// Neither ready() nor the release of the stream calls the driver again, until the stream has new
// work.
void stream_that_is_done_is_not_asked_again(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaMemory& memory = memory_at(user.allocate(64));
  constexpr std::size_t kBytes = 4096;
  HostAllocation here(memory, kBytes), back(memory, kBytes);
  Allocation there(Memory(memory), kBytes);
  user.set("least_delay", 5'000'000);
  {
    Stream stream{Memory(memory)};
    for (const int value : {1, 2}) {
      std::memset(here.data(), value, kBytes);
      stream.copy(there.data(), here.data(), kBytes);
      expect(!stream.ready(), "a copy that takes 5 ms");
      stream.wait_for(*memory.event_of(1));
      expect(stream.finish(), "a copy");
      const long done = user.count("calls");
      expect(stream.ready() && stream.ready(), "still so");
      expect(user.count("calls") == done, "which takes no call");
      stream.mark();
      expect(stream.finish() && user.count("calls") > done, "a mark is something to do");
    }
    stream.copy(back.data(), there.data(), kBytes);
    expect(stream.finish(), "a copy back");
    user.set("lost", 700);  // each call fails from now on
  }
  user.set("lost", 0);
  user.set("least_delay", 0);
  expect(std::memcmp(here.data(), back.data(), kBytes) == 0, "the second values");
  const long streams = user.count("streams");
  {
    const Stream again{Memory(memory)};
  }
  expect(user.count("streams") == streams, "it was given back although no call succeeded");
}

// At most 256 MiB of pinned memory are kept for later calls, or twice what the largest call used.
void spare_host_memory_is_bounded(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaMemory& memory = memory_at(user.allocate(64));
  {
    std::vector<HostAllocation> many;
    for (int i = 0; i < 5; ++i) many.emplace_back(memory, std::size_t{80} << 20);
  }
  HostAllocation kept(memory, std::size_t{80} << 20);  // a request also frees the excess
  expect(user.count("pinned") == 3, "three of 80 MiB");
  kept.keep_for_ever();
  HostAllocation other(memory, std::size_t{80} << 20);
  expect(user.count("pinned") == 3, "what may still be written to is given to nobody");
  const std::byte* address = nullptr;
  for (int time = 0; time < 3; ++time) {
    const HostAllocation longest(memory, std::size_t{300} << 20);
    const HostAllocation shorter(memory, std::size_t{100} << 20);
    expect(time == 0 || longest.data() == address, "the longest is kept for the next call");
    address = longest.data();
  }
}

// Nothing is pinned, as a stream may wait for peers. Afterwards the requested amount is pinned in
// addition.
void nothing_is_pinned_while_an_order_is_open(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaMemory& memory = memory_at(user.allocate(64));
  const HostAllocation before(memory, 100'000);
  const long pinned = user.count("pinned");
  const std::array<int, 1000> values{1, 2, 3};
  std::array<int, 1000> found{};
  constexpr std::size_t kBytes = sizeof values;
  const Allocation there(Memory(memory), kBytes);
  {
    const device::DriverGate::Open open(memory.gate());
    const HostAllocation here(memory, 200'000), other(memory, 200'000);
    expect(user.count("pinned") == pinned, "any memory serves");
    expect(memory.host().is_plain(here.data() + 199'999) && !memory.host().is_plain(before.data()),
           "which is known");
    std::memcpy(here.data(), values.data(), kBytes);
    Stream stream{Memory(memory)};
    stream.copy(there.data(), here.data(), kBytes);
    const std::uint64_t mark = stream.mark();
    stream.copy(other.data(), there.data(), kBytes);
    expect(!stream.has_passed(mark + 1) && stream.finish() && stream.has_passed(mark), "copies");
    std::memcpy(found.data(), other.data(), kBytes);
    expect(found == values, "in their order");
  }
  const HostAllocation first(memory, 200'000);
  expect(user.count("pinned") == pinned + 2, "as much as was wanted");
  const HostAllocation second(memory, 200'000);
  expect(user.count("pinned") == pinned + 2 && !memory.host().is_plain(second.data()),
         "for others");
}

// Like cudaDeviceReset: the new context has the old handle, but the old memory is gone.
void a_context_that_was_reset_is_another_one(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaMemory& before = memory_at(user.allocate(64));
  CudaMemory& pooled = memory_at(user.allocate_in_pool(64));
  expect(&before == &pooled, "one context");
  {
    const HostAllocation spare(before, 5000);
  }
  user.must("cuDevicePrimaryCtxReset_v2", 0);
  CudaMemory& after = memory_at(user.allocate(64));
  HostAllocation here(after, 5000);
  std::memset(here.data(), 1, 5000);
  expect(&after != &before, "another one");
  expect(&after == &memory_at(user.allocate_in_pool(64)), "also of pools");
}

// The progress thread must be able to look up arrays meanwhile.
void memory_that_is_given_again_is_waited_for_without_a_lock(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaMemory& memory = memory_at(user.allocate(64));
  device::ExportedMemory& exported = memory.exported();
  exported.release(exported.allocate(std::size_t{129} << 20, device::Export::kMust));
  const device::CudaStream stream(driver());
  const device::PinnedAllocation page(driver(), 64);
  auto* const word = static_cast<std::atomic<std::uint32_t>*>(page.get());
  word->store(0);
  driver().check(driver().call.StreamWaitValue32(stream.get(), address_of(word), 1, 0), "a wait");
  std::thread other([&] { exported.allocate(std::size_t{2} << 20, device::Export::kMust); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  expect(!exported.find(word, 4), "found without a wait");
  word->store(1);
  other.join();
}

// As after Numba's close(), or in a forked child: no resource can be freed any more.
void what_outlives_its_context_ends_quietly(BoardBootstrap&) {
  const User user;
  const auto end_context = [&] {
    user.must("cuDevicePrimaryCtxRelease_v2", 0);
    user.must("cuCtxSetCurrent", static_cast<void*>(nullptr));
  };
  user.make_current();
  CudaMemory& memory = memory_at(user.allocate(64));
  end_context();
  for (const char* const plan : {"nccl", "one_shot"}) {
    user.make_current();
    std::string why;
    CollectiveLibrary* const library = memory.collectives(plan, why);
    expect(library != nullptr, why);
    LibraryGroup::Ticket ticket{};
    const auto group = library->open(0, 1, ticket), given_up = library->open(0, 1, ticket);
    group->connect({&ticket, 1});
    given_up->connect({&ticket, 1});
    end_context();
    expect(!memory.context().if_alive([] {}), "it has ended");
    given_up->abort();
  }
}

// The driver may have to wait in an allocation, which ends the capture; otherwise it does not.
void arrays_are_had_while_a_stream_is_captured(BoardBootstrap&) {
  const User user;
  user.make_current();
  device::ExportedMemory& exported = memory_at(user.allocate(64)).exported();
  const device::CudaStream stream(driver());
  const auto capture = [&](std::size_t released) {
    exported.release(exported.allocate(released, device::Export::kMust));
    user.must("cuStreamBeginCapture_v2", static_cast<void*>(stream.get()), 0);
    exported.allocate(std::size_t{30} << 20, device::Export::kMust);
    void** const no_graph = nullptr;
    return user.call("cuStreamEndCapture", static_cast<void*>(stream.get()), no_graph);
  };
  expect(capture(100) == 0, "nothing breaks it");
  expect(capture(std::size_t{129} << 20) != 0, "who has released much makes arrays before");
}

// As on MIG instances and in sandboxes.
void memory_that_cannot_be_exported_serves_this_process(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaMemory& memory = memory_at(user.allocate(64));
  device::ExportedMemory& exported = memory.exported();
  user.fail("cuIpcGetMemHandle", 801);
  const std::byte* const array = exported.allocate(100, device::Export::kIfPossible);
  expect(!exported.find(array, 100), "peers find it nowhere");
  expect(!message_of<DeviceError>([&] { exported.allocate(100, device::Export::kMust); }).empty(),
         "what has to be exported");
  user.fail("cuIpcGetMemHandle", 0);
  const std::byte* const other = exported.allocate(100, device::Export::kMust);
  expect(static_cast<bool>(exported.find(other, 100)), "it can be exported again");
}

// The places of a call's arrays in the program's memory. The two arrays may be the same.
SharedArrays::Places places(CudaMemory& memory, Address input, Address result) {
  constexpr std::size_t kBytes = 100;
  return memory.programs().find({pointer_to(input), kBytes}, {pointer_to(result), kBytes});
}
SharedArrays::Places places(CudaMemory& memory, Address array) {
  return places(memory, array, array);
}

void allocations_that_calls_come_with_again_are_exported(BoardBootstrap&) {
  const User user;
  user.make_current();
  const Address one = user.allocate(10'000), other = user.allocate(10'000);
  CudaMemory& memory = memory_at(one);
  expect(!places(memory, one).input && !places(memory, other).input, "seen for the first time");
  const SharedArrays::Places found = places(memory, one, one + 9'000);
  expect(found.input.is_programs() && found.input.offset() == 0, "all that it has");
  expect(found.result.allocation() == found.input.allocation() && found.result.offset() == 9'000,
         "wherever in it");
  expect(!places(memory, one + 12'250).input, "behind its end");
  const auto block = memory.programs().block_of(found.input.allocation());
  expect(block && block->begin == one, "as a whole");
  user.free(one);
  expect(user.allocate(10'000) == one, "the address is used again");
  expect(!places(memory, one).input && !memory.programs().has(found.input.allocation()),
         "for another allocation");
  const SharedPlace anew = places(memory, one).input;
  expect(anew && anew.allocation() != found.input.allocation(), "of another number");
}

void pools_and_managed_memory_are_exported_to_nobody(BoardBootstrap&) {
  const User user;
  user.make_current();
  const Address pooled = user.allocate_in_pool(64), managed = user.allocate_managed(64);
  CudaMemory& memory = memory_at(pooled);
  for (int turn = 0; turn < 3; ++turn) {
    const SharedArrays::Places found = places(memory, pooled, managed);
    expect(!found.input && !found.result, "nowhere");
  }
}

void nothing_is_exported_while_an_order_is_open(BoardBootstrap&) {
  const User user;
  user.make_current();
  const Address array = user.allocate(1000);
  CudaMemory& memory = memory_at(array);
  {
    const device::DriverGate::Open open(memory.gate());
    for (int turn = 0; turn < 3; ++turn) expect(!places(memory, array).input, "not now");
  }
  expect(static_cast<bool>(places(memory, array).input), "then");
}

void so_many_allocations_are_exported(BoardBootstrap&) {
  constexpr std::size_t kMost = device::ProgramsMemory::kMost;
  const User user;
  user.make_current();
  std::vector<Address> all(kMost + 1);
  for (Address& one : all) one = user.allocate(1000);
  CudaMemory& memory = memory_at(all[0]);
  std::size_t found = 0;
  for (const Address one : all) {
    places(memory, one);
    found += places(memory, one).input ? 1 : 0;
  }
  expect(found == kMost, std::to_string(found));
  const long calls = user.count("calls");
  places(memory, all.back());
  constexpr long kFew = 10;  // for a query in its context
  expect(user.count("calls") < calls + kFew, "no search for what was freed");
  for (const Address one : std::span(all).first(kMost / 2)) user.free(one);
  const Address last = all.back();
  for (int turn = 0; turn < 2000 && !places(memory, last).input;) ++turn;
  expect(static_cast<bool>(places(memory, last).input), "there is room again");
  expect(memory.programs().ended() == kMost / 2, "what was freed has ended");
}

void a_programs_stream_comes_first(BoardBootstrap&) {
  const User user;
  user.make_current();
  const Address there = user.allocate(64);
  CudaMemory& memory = memory_at(there);
  const std::array<int, 16> values{1, 2, 3};
  std::array<int, 16> found{};
  void* theirs = nullptr;
  user.must("cuStreamCreate", &theirs, 1U);
  user.set("least_delay", 5'000'000);
  user.must("cuMemcpyAsync", there, address_of(values.data()), sizeof values, theirs);
  user.set("least_delay", 0);
  Stream stream{Memory(memory)};
  stream.wait_for(*memory.event_of(address_of(theirs)));
  stream.copy(found.data(), pointer_to(there), sizeof found);
  expect(stream.finish() && found == values, "what was given to it before");
}

void a_device_that_fails_says_so(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaMemory& memory = memory_at(user.allocate(64));
  Stream stream{Memory(memory)};
  user.set("lost", 700);
  bool said = false;
  try {
    static_cast<void>(stream.ready());
  } catch (const DeviceError& error) {
    said = std::string(error.what()).find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos;
  }
  expect(said && !stream.finish(), "it has failed");
}

int run_all(const std::string& part) {
  Report report(part);
  const auto on = on_ranks(report, Ranks::kProcesses);
  const auto alone = [&](const char* name, const Body& body) { on(1, name, body); };
  alone("copies_work_in_any_thread", copies_work_in_any_thread);
  alone("memory_without_a_context_is_the_primary_ones",
        memory_without_a_context_is_the_primary_ones);
  alone("what_was_made_is_used_again", what_was_made_is_used_again);
  alone("stream_that_is_done_is_not_asked_again", stream_that_is_done_is_not_asked_again);
  alone("spare_host_memory_is_bounded", spare_host_memory_is_bounded);
  alone("nothing_is_pinned_while_an_order_is_open", nothing_is_pinned_while_an_order_is_open);
  alone("a_context_that_was_reset_is_another_one", a_context_that_was_reset_is_another_one);
  alone("memory_that_is_given_again_is_waited_for_without_a_lock",
        memory_that_is_given_again_is_waited_for_without_a_lock);
  alone("arrays_are_had_while_a_stream_is_captured", arrays_are_had_while_a_stream_is_captured);
  alone("what_outlives_its_context_ends_quietly", what_outlives_its_context_ends_quietly);
  alone("memory_that_cannot_be_exported_serves_this_process",
        memory_that_cannot_be_exported_serves_this_process);
  alone("allocations_that_calls_come_with_again_are_exported",
        allocations_that_calls_come_with_again_are_exported);
  alone("pools_and_managed_memory_are_exported_to_nobody",
        pools_and_managed_memory_are_exported_to_nobody);
  alone("nothing_is_exported_while_an_order_is_open", nothing_is_exported_while_an_order_is_open);
  alone("so_many_allocations_are_exported", so_many_allocations_are_exported);
  alone("a_programs_stream_comes_first", a_programs_stream_comes_first);
  alone("a_device_that_fails_says_so", a_device_that_fails_says_so);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: cuda_memory_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
