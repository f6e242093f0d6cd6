// Calls in the order of a program's streams. It tests the order of the work. It also tests that no
// thread waits for ever, however driver and hardware queues make streams and threads wait for each
// other.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda_memory.h"
#include "device/driver/pointer_cache.h"
#include "node_calls.h"
#include "user.h"

namespace gradred::testing {
namespace {

using device::Address;
using device::CudaMemory;

constexpr std::size_t kCount = 1000, kBytes = kCount * sizeof(int), kPiece = 1200;

CudaMemory& memory_at(Address address) {
  const device::Driver& driver = device::Driver::load(kSimulated);
  return CudaMemory::of(driver, device::ask(driver, address), {kSimulated, {kSimulated}});
}

void* open_stream(const User& user, bool urgent = false) {
  constexpr unsigned kNonBlocking = 1;
  void* made = nullptr;
  if (urgent) {
    user.must("cuStreamCreateWithPriority", &made, kNonBlocking, -5);
  } else {
    user.must("cuStreamCreate", &made, kNonBlocking);
  }
  return made;
}

std::vector<int> numbers(int first) {
  std::vector<int> made(kCount);
  std::iota(made.begin(), made.end(), first);
  return made;
}

// An allreduce on one rank, which adds 1 to the array on the host.
class Addition {
 public:
  Addition(CudaMemory& memory, void* stream, Address array) : array_(array) {
    std::string why;
    order_ = memory.open_order(address_of(stream), {}, why);
    gradred::check(order_ != nullptr, why.c_str());
    order_->follow(memory, address_of(stream));
    input_ = order_->input();
    input_->copy(host_.data(), pointer_to(array), kBytes);
    result_ = order_->result(pointer_to(array), host_.data(), kBytes, kPiece);
  }

  // The device may use its memory until all copies are complete.
  ~Addition() {
    order_->release();
    while (!has_input() || !has_ended()) usleep(50);
  }
  Addition(const Addition&) = delete;
  Addition& operator=(const Addition&) = delete;

  StreamOrder& order() { return *order_; }
  bool has_input() { return input_->ready(); }
  bool has_ended() { return result_->ready(); }
  void compute() {
    for (int& one : host_) ++one;
  }
  // Releases the copies of the bytes before `end`, whose result is ready.
  void let_go(std::size_t end) {
    result_->copy(pointer_to(array_ + gone_), at(gone_), end - gone_);
    gone_ = end;
  }
  // Does the work of the progress thread, which makes no calls to the driver.
  void carry_on() {
    while (!has_input()) usleep(50);
    compute();
    for (std::size_t end = 1800; end < kBytes; end += 1800) let_go(end);
    let_go(kBytes);
    while (!has_ended()) usleep(50);
  }

 private:
  const std::byte* at(std::size_t place) const {
    return reinterpret_cast<const std::byte*>(host_.data()) + place;
  }

  const Address array_;
  std::vector<int> host_ = std::vector<int>(kCount);
  std::shared_ptr<StreamOrder> order_;
  std::unique_ptr<DeviceStream> input_, result_;
  std::size_t gone_ = 0;
};

// A device, an array on it, and a stream that writes numbers to it late.
struct Program {
  User user{};
  Address array = 0;
  void* stream = nullptr;
  std::vector<int> given = numbers(5), found = std::vector<int>(kCount);

  explicit Program(bool urgent = false) {
    user.make_current();
    array = user.allocate(kBytes);
    stream = open_stream(user, urgent);
  }

  void write_late() {
    user.set("least_delay", 50'000'000);
    user.must("cuMemcpyAsync", array, address_of(given.data()), kBytes, stream);
    user.set("least_delay", 0);
  }
  void read() { user.must("cuMemcpyAsync", address_of(found.data()), array, kBytes, stream); }
  bool is_done() { return user.call("cuStreamQuery", stream) == 0; }
  void finish() { user.must("cuStreamSynchronize", stream); }
};

void a_call_comes_between_what_is_before_it_and_after_it(BoardBootstrap&) {
  Program program;
  program.write_late();
  Addition call(memory_at(program.array), program.stream, program.array);
  call.order().precede(address_of(program.stream));
  program.read();
  expect(!call.has_input(), "what comes before has not been done");
  call.carry_on();
  program.finish();
  expect(program.found == numbers(6), "the result, and nothing older");
}

void nothing_is_written_before_it_is_let_go(BoardBootstrap&) {
  Program program;
  program.write_late();
  Addition call(memory_at(program.array), program.stream, program.array);
  call.order().precede(address_of(program.stream));
  program.read();
  while (!call.has_input()) usleep(100);
  call.compute();
  void* const other = open_stream(program.user);
  std::vector<int> seen(kCount);
  const auto look = [&] {
    usleep(20'000);
    program.user.must("cuMemcpyAsync", address_of(seen.data()), program.array, kBytes, other);
    program.user.must("cuStreamSynchronize", other);
    const auto parts = std::ranges::mismatch(seen, numbers(6)).in1 - seen.begin();
    return static_cast<std::size_t>(parts) * sizeof(int);
  };
  expect(look() == 0, "all is held back");
  call.let_go(kPiece + 100);
  expect(look() == kPiece, "whole pieces only");
  call.let_go(3 * kPiece);
  expect(look() == 3 * kPiece && !call.has_ended() && !program.is_done(), "three pieces");
  call.let_go(kBytes);
  program.finish();
  expect(call.has_ended() && program.found == numbers(6), "all of it");
}

// Like a broadcast, which does not read the array first.
void what_was_to_be_read_before_is_not_overwritten(BoardBootstrap&) {
  Program program;
  program.write_late();
  program.finish();
  program.user.set("least_delay", 50'000'000);
  program.read();
  program.user.set("least_delay", 0);
  const std::vector<int> result = numbers(100);
  std::string why;
  const auto order = memory_at(program.array).open_order(address_of(program.stream), {}, why);
  order->follow(memory_at(program.array), address_of(program.stream));
  const auto copies = order->result(pointer_to(program.array), result.data(), kBytes, kBytes);
  copies->copy(pointer_to(program.array), result.data(), kBytes);
  while (!copies->ready()) usleep(100);
  program.finish();
  expect(program.found == program.given, "what was there before");
}

// If all streams of one priority share a queue, gradred's streams use another queue.
void what_a_call_holds_back_holds_up_no_other_work(BoardBootstrap&) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  Program program;
  void* const other = open_stream(program.user);
  Addition call(memory_at(program.array), program.stream, program.array);
  while (!call.has_input()) usleep(100);
  const Address theirs = program.user.allocate(kBytes);
  program.user.must("cuMemcpyAsync", theirs, address_of(program.given.data()), kBytes, other);
  const auto is_done = [&] { return program.user.call("cuStreamQuery", other) == 0; };
  for (int look = 0; look < 2000 && !is_done(); ++look) usleep(1000);
  expect(is_done(), "it goes on");
  call.carry_on();
}

void a_call_that_is_given_up_holds_nobody_back(BoardBootstrap&) {
  Program program;
  Addition call(memory_at(program.array), program.stream, program.array);
  call.order().precede(address_of(program.stream));
  program.read();
  while (!call.has_input()) usleep(100);
  usleep(20'000);
  expect(!program.is_done(), "it is held back");
  call.order().release();
  program.finish();
}

// cuMemFree makes the driver wait until the device has no work left. No other thread can call the
// driver meanwhile. So the thread that the device waits for must not call it.
void the_driver_may_wait_for_the_call(BoardBootstrap&) {
  Program program;
  const Address spare = program.user.allocate(64);
  Addition first(memory_at(program.array), program.stream, program.array);
  first.order().precede(address_of(program.stream));
  program.user.set("synchronises", 1);
  std::thread engine([&] {
    usleep(20'000);
    first.carry_on();
  });
  program.user.free(spare);
  engine.join();
  program.read();
  program.finish();
  expect(first.has_ended() && program.found != program.given, "it has ended");
}

void who_asks_the_driver_waits_for_ever(BoardBootstrap&) {
  const bool caught = is_caught([] {
    alarm(2);
    Program program;
    const Address spare = program.user.allocate(64);
    Addition call(memory_at(program.array), program.stream, program.array);
    call.order().precede(address_of(program.stream));
    program.user.set("synchronises", 1);
    std::thread engine([&] {
      usleep(20'000);
      program.user.call("cuStreamQuery", program.stream);  // the error that the test is about
      call.carry_on();
    });
    program.user.free(spare);
    engine.join();
    return true;
  });
  expect(caught, "the simulated driver has the lock that real ones have");
}

// A waiting task blocks all later tasks of streams in the same queue.
void streams_may_share_a_queue(BoardBootstrap&, bool urgent) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  Program program(urgent);
  void* const other = open_stream(program.user, urgent);
  const Address theirs = program.user.allocate(kBytes);
  program.write_late();
  program.user.must("cuMemcpyAsync", theirs, address_of(program.given.data()), kBytes, other);
  CudaMemory& memory = memory_at(program.array);
  Addition first(memory, program.stream, program.array);
  first.order().precede(address_of(program.stream));
  Addition second(memory, other, theirs);
  second.order().precede(address_of(other));
  Addition third(memory, program.stream, program.array);
  third.order().precede(address_of(program.stream));
  program.read();
  first.carry_on();
  second.carry_on();
  third.carry_on();
  program.finish();
  expect(program.found == numbers(7), "both calls, one after the other");
}

void what_is_given_out_of_order_waits_for_ever(BoardBootstrap&) {
  const bool caught = is_caught([] {
    alarm(2);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    Program program;
    void* const late = open_stream(program.user);
    std::array<unsigned, 1> word{};
    program.user.must("cuStreamWaitValue32_v2", program.stream, address_of(word.data()), 1U, 0U);
    program.user.must("cuMemcpyAsync", program.array, address_of(program.given.data()), kBytes,
                      late);
    program.user.must("cuStreamSynchronize", late);  // before the word is written
    return true;
  });
  expect(caught, "the simulated driver's streams share queues");
}

void calls_take_turns_with_words_and_streams(BoardBootstrap&) {
  Program program;
  program.write_late();
  CudaMemory& memory = memory_at(program.array);
  const auto counts = [&] {
    return std::array{program.user.count("streams"), program.user.count("events"),
                      program.user.count("pinned")};
  };
  const auto use = [&] {
    std::vector<std::unique_ptr<Addition>> calls;
    for (int i = 0; i < 10; ++i) {
      calls.push_back(std::make_unique<Addition>(memory, program.stream, program.array));
      calls.back()->order().precede(address_of(program.stream));
    }
    for (const auto& call : calls) call->carry_on();
  };
  use();
  const auto before = counts();
  for (int time = 0; time < 20; ++time) use();
  expect(before == counts(), "nothing is made anew");
  program.read();
  program.finish();
  expect(program.found == numbers(5 + 210), "each has added one");
}

void streams_that_cannot_wait_are_reported(BoardBootstrap&, const char* variable, const char* value,
                                           const std::string& reason) {
  setenv(variable, value, 1);
  Program program;
  CudaMemory& memory = memory_at(program.array);
  std::string why;
  for (int time = 0; time < 2; ++time) {
    expect(memory.open_order(address_of(program.stream), {}, why) == nullptr, "there is no order");
    expect(why.find(reason) != std::string::npos, why);
  }
}

void a_stream_that_is_captured_is_refused(BoardBootstrap&) {
  Program program;
  CudaMemory& memory = memory_at(program.array);
  std::string why;
  const auto order = memory.open_order(address_of(program.stream), {}, why);
  program.user.must("cuStreamBeginCapture_v2", program.stream, 0);
  const std::string said =
      message_of<UsageError>([&] { order->follow(memory, address_of(program.stream)); });
  expect(said.find("captured in a CUDA graph") != std::string::npos, said);
  const auto take = [&] { static_cast<void>(memory.event_of(address_of(program.stream))); };
  expect(!message_of<UsageError>(take).empty(), "without an order as well");
}

void a_device_that_fails_is_found_by_who_waits(BoardBootstrap&) {
  Program program;
  Addition call(memory_at(program.array), program.stream, program.array);
  call.order().check();
  program.user.set("lost", 700);
  expect(!message_of<DeviceError>([&] { call.order().check(); }).empty(), "it has failed");
}

// Work that copies the array to `other`, in a stream of gradred's, behind what the program's stream
// has been given. The program's stream waits for its end.
class GivenCopy {
 public:
  GivenCopy(CudaMemory& memory, Program& program, Address other)
      : stream_(memory.context().driver()), given_(memory.orders().give()) {
    gradred::check(given_ != nullptr, "work can be given");
    const auto before = memory.event_of(address_of(program.stream));
    stream_.wait_for(device::PooledEvent::event_of(*before));
    given_->enqueue(stream_, [&] { stream_.copy(other, program.array, kBytes); });
    memory.precede(*memory.event_of(address_of(stream_.get())), address_of(program.stream));
  }
  device::Orders::Given& work() { return *given_; }
  void drop() { given_.reset(); }

 private:
  device::CudaStream stream_;
  std::unique_ptr<device::Orders::Given> given_;
};

void enqueued_work_waits_for_the_host_at_two_places(BoardBootstrap&) {
  Program program;
  const Address other = program.user.allocate(kBytes);
  CudaMemory& memory = memory_at(program.array);
  for (int turn = 0; turn < 3; ++turn) {
    program.user.set("least_delay", 20'000'000);
    program.user.must("cuMemcpyAsync", program.array, address_of(program.given.data()), kBytes,
                      program.stream);
    program.user.set("least_delay", 0);
    GivenCopy copy(memory, program, other);
    expect(memory.orders().has_enqueued_work(), "it may wait for peers");
    expect(!memory.gate().while_none_is_open([] {}), "so nothing that waits for it is done");
    while (!copy.work().input_is_there()) usleep(100);
    usleep(2'000);
    expect(!copy.work().is_done(), "it has not begun");
    copy.work().begin();
    while (!copy.work().is_done()) usleep(100);
    usleep(2'000);
    expect(!program.is_done(), "the program's stream waits");
    copy.work().end();
    expect(!memory.orders().has_enqueued_work(), "it ends by itself now");
    program.user.must("cuMemcpyAsync", address_of(program.found.data()), other, kBytes,
                      program.stream);
    program.finish();
    expect(program.found == program.given, "what was there before was copied");
    std::ranges::for_each(program.given, [](int& one) { ++one; });
  }
}

void enqueued_work_that_is_dropped_goes_on(BoardBootstrap&) {
  Program program;
  CudaMemory& memory = memory_at(program.array);
  GivenCopy copy(memory, program, program.user.allocate(kBytes));
  usleep(2'000);
  expect(!program.is_done(), "the program's stream waits");
  copy.drop();
  program.finish();
  expect(memory.gate().while_none_is_open([] {}), "nothing waits any more");
}

void work_that_cannot_be_given_holds_nobody_back(BoardBootstrap&) {
  Program program;
  CudaMemory& memory = memory_at(program.array);
  const device::CudaStream stream(memory.context().driver());
  {
    const auto given = memory.orders().give();
    const std::string said = message_of<DeviceError>(
        [&] { given->enqueue(stream, [] { throw DeviceError("no such kernel"); }); });
    expect(said == "no such kernel", said);
  }
  while (!stream.ready()) usleep(100);
  expect(memory.gate().while_none_is_open([] {}), "nothing waits any more");
}

// The driver waits for the device, and no other thread can call it. Passing on the counts needs no
// call.
void the_driver_may_wait_for_enqueued_work(BoardBootstrap&) {
  Program program;
  const Address spare = program.user.allocate(64);
  CudaMemory& memory = memory_at(program.array);
  GivenCopy copy(memory, program, program.user.allocate(kBytes));
  program.user.set("synchronises", 1);
  std::thread engine([&] {
    usleep(20'000);
    while (!copy.work().input_is_there()) usleep(100);
    copy.work().begin();
    while (!copy.work().is_done()) usleep(100);
    copy.work().end();
  });
  program.user.free(spare);
  engine.join();
  program.user.set("synchronises", 0);
  program.finish();
}

int run_all(const std::string& part) {
  Report report(part);
  const auto on = on_ranks(report, Ranks::kProcesses);
  const auto alone = [&](const char* name, const Body& body) { on(1, name, body); };
  alone("a_call_comes_between_what_is_before_it_and_after_it",
        a_call_comes_between_what_is_before_it_and_after_it);
  alone("nothing_is_written_before_it_is_let_go", nothing_is_written_before_it_is_let_go);
  alone("what_was_to_be_read_before_is_not_overwritten",
        what_was_to_be_read_before_is_not_overwritten);
  alone("what_a_call_holds_back_holds_up_no_other_work",
        what_a_call_holds_back_holds_up_no_other_work);
  alone("a_call_that_is_given_up_holds_nobody_back", a_call_that_is_given_up_holds_nobody_back);
  alone("the_driver_may_wait_for_the_call", the_driver_may_wait_for_the_call);
  alone("who_asks_the_driver_waits_for_ever", who_asks_the_driver_waits_for_ever);
  for (const bool urgent : {false, true}) {
    alone(urgent ? "streams_may_share_a_queue, urgent ones" : "streams_may_share_a_queue",
          [urgent](BoardBootstrap& ranks) { streams_may_share_a_queue(ranks, urgent); });
  }
  alone("what_is_given_out_of_order_waits_for_ever", what_is_given_out_of_order_waits_for_ever);
  alone("calls_take_turns_with_words_and_streams", calls_take_turns_with_words_and_streams);
  alone("streams_that_cannot_wait_are_reported, old driver", [](BoardBootstrap& ranks) {
    streams_that_cannot_wait_are_reported(ranks, "SIMULATED_CUDA_VERSION", "11040",
                                          "no cuStreamWaitValue32");
  });
  alone("streams_that_cannot_wait_are_reported, device", [](BoardBootstrap& ranks) {
    streams_that_cannot_wait_are_reported(ranks, "SIMULATED_CUDA_NO_STREAM_VALUES", "1", "(801)");
  });
  alone("a_stream_that_is_captured_is_refused", a_stream_that_is_captured_is_refused);
  alone("a_device_that_fails_is_found_by_who_waits", a_device_that_fails_is_found_by_who_waits);
  alone("enqueued_work_waits_for_the_host_at_two_places",
        enqueued_work_waits_for_the_host_at_two_places);
  alone("enqueued_work_that_is_dropped_goes_on", enqueued_work_that_is_dropped_goes_on);
  alone("work_that_cannot_be_given_holds_nobody_back", work_that_cannot_be_given_holds_nobody_back);
  alone("the_driver_may_wait_for_enqueued_work", the_driver_may_wait_for_enqueued_work);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: order_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
