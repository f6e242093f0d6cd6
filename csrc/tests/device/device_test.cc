// The CUDA driver and the owners of its resources, on the simulated driver.
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "device/driver/owners.h"
#include "device/location.h"
#include "node_calls.h"
#include "user.h"

namespace gradred::testing {
namespace {

using device::Address;
using device::CudaEvent;
using device::CudaStream;
using device::DeviceAllocation;
using device::Driver;
using device::DriverError;
using device::ImportedAllocation;
using device::IpcHandle;
using device::PinnedAllocation;

const Driver& driver() { return Driver::load(kSimulated); }

void expect_text(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    expect(contains(text, part), "'" + part + "' in '" + text + "'");
  }
}

// ---- the driver -------------------------------------------------------------------------------

void without_a_driver_nothing_is_loaded_and_a_load_says_what_is_missing(BoardBootstrap&) {
  expect(Driver::loaded(kSimulated) == nullptr, "nobody has loaded it");
  expect_text(message_of<DeviceError>([] { Driver::load("libnone.so.1"); }),
              {"cannot be loaded: libnone.so.1", "Install NVIDIA's driver"});
  expect(Driver::loaded(kSimulated) == nullptr, "nobody has loaded it yet");
}

void a_driver_is_used_once_the_program_has_begun_with_it(BoardBootstrap&) {
  expect(Driver::loaded(kSimulated) == nullptr, "nobody has loaded it");
  const User user;
  const Driver* const found = Driver::loaded(kSimulated);
  expect(found != nullptr && !found->initialised(), "it is there, and has done nothing");
  user.initialise();
  expect(found->initialised() && found->current() == nullptr, "no context yet");
  expect(user.count("contexts") == 0, "gradred makes none");
  user.make_current();
  expect(found->current() != nullptr, "the program's context");
  std::thread([&] { expect(found->current() == nullptr, "another thread has none"); }).join();
  expect(user.count("contexts") == 1, "gradred makes none");
}

void a_forked_child_has_no_driver(BoardBootstrap&) {
  const User user;
  user.initialise();
  expect(driver().initialised(), "the parent has one");
  const pid_t child = fork();
  if (child == 0) _exit(driver().initialised() ? 1 : 0);
  int status = 0;
  waitpid(child, &status, 0);
  expect(status == 0, "the child's is not initialised");
}

void a_driver_that_is_too_old_is_named(BoardBootstrap&) {
  setenv("SIMULATED_CUDA_VERSION", "10020", 1);
  expect_text(message_of<DeviceError>([] { driver(); }), {"for CUDA 10.2", "11.4 or later"});
}

void functions_are_found_without_the_drivers_help(BoardBootstrap&) {
  setenv("SIMULATED_CUDA_NO_ADDRESSES", "1", 1);
  const User user;
  user.make_current();
  expect(driver().current() != nullptr, "it works");
}

void what_is_optional_may_be_missing(BoardBootstrap&) {
  setenv("SIMULATED_CUDA_VERSION", "11040", 1);
  const User user;
  user.make_current();
  expect(driver().call.StreamWaitValue32 == nullptr, "it came with 11.7");
}

void errors_name_code_text_place_and_remedy(BoardBootstrap&) {
  const User user;
  user.initialise();
  const auto allocate = [] { const DeviceAllocation made(driver(), 64); };
  expect_text(message_of<DriverError>(allocate),
              {"cuMemAlloc of 64 bytes: CUDA_ERROR_INVALID_CONTEXT (201)", "invalid device context",
               "at owners.cc:", "Make an array on the device"});
  user.make_current();
  user.set("memory", 4096);
  const DeviceAllocation all(driver(), 4096);
  expect_text(message_of<DriverError>(allocate),
              {"CUDA_ERROR_OUT_OF_MEMORY (2)", "Free arrays on this device"});
  user.fail("cuStreamCreate", 12345);
  expect_text(message_of<DriverError>([] { const CudaStream made(driver()); }),
              {"cuStreamCreate: an unknown error (12345)"});
  for (const auto& [code, remedy] :
       std::map<int, const char*>{{209, "The device can be used further"},
                                  {218, "The device can be used further"},
                                  {711, "The device can be used further"},
                                  {999, "If it stays, start the program anew"},
                                  {719, "a process cannot use the device again"}}) {
    user.fail("cuStreamCreate", code);
    expect_text(message_of<DriverError>([] { const CudaStream made(driver()); }), {remedy});
  }
}

void after_the_loss_of_the_device_every_call_raises(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaStream stream(driver());
  const DeviceAllocation memory(driver(), 4096);
  user.set("lost", 214);
  expect_text(message_of<DriverError>([&] { stream.synchronize(); }),
              {"CUDA_ERROR_ECC_UNCORRECTABLE", "start the program anew"});
  expect(!message_of<DriverError>([&] { stream.ready(); }).empty(), "ready() too");
}

// ---- owners -----------------------------------------------------------------------------------

void expect_nothing_left(const User& user) {
  for (const char* what : {"bytes", "streams", "events", "pinned"}) {
    expect(user.count(what) == 0, std::to_string(user.count(what)) + " " + what + " left");
  }
}

void owners_give_back_what_they_own_from_any_thread(BoardBootstrap&) {
  const User user;
  user.make_current();
  DeviceAllocation memory(driver(), 100'000);
  DeviceAllocation moved = std::move(memory);
  {
    const CudaStream stream(driver());
    const CudaEvent event(driver()), shared(driver(), device::Sharing::kProcesses);
    const PinnedAllocation pinned(driver(), 5000);
    expect(user.count("streams") == 1 && user.count("events") == 2 && user.count("pinned") == 1 &&
               user.count("bytes") >= 100'000,
           "all are there");
  }
  expect(user.count("bytes") >= 100'000, "what was moved is there once");
  // A thread without a context, such as the interpreter's thread that collects garbage.
  std::thread([&] { moved.reset(); }).join();
  expect_nothing_left(user);
}

void owners_may_outlive_the_context(BoardBootstrap&) {
  const User user;
  user.make_current();
  const CudaStream stream(driver());
  user.must("cuCtxSetCurrent", device::ContextHandle{});
  user.must("cuDevicePrimaryCtxRelease_v2", 0);
}

void primary_context_of_a_device_is_used_only_if_it_is_active(BoardBootstrap&) {
  const User user;
  user.initialise();
  expect(!message_of<DriverError>([] { const device::PrimaryContext none(driver(), 0); }).empty(),
         "there is none");
  user.make_current();
  std::thread([&] {
    const device::PrimaryContext primary(driver(), 0);
    const device::ScopedContext scope(driver(), primary.get());
    const DeviceAllocation memory(driver(), 64);
    expect(user.count("contexts") == 2, "held");
  }).join();
  expect(user.count("contexts") == 1, "given back");
  expect_nothing_left(user);
}

// ---- streams and events -----------------------------------------------------------------------

// Pinned memory and device memory of the same size.
struct Both {
  explicit Both(std::size_t count)
      : bytes(count * sizeof(int)), host(driver(), bytes), device(driver(), bytes) {}
  int& operator[](std::size_t i) const { return static_cast<int*>(host.get())[i]; }
  Address at() const { return address_of(host.get()); }
  std::size_t bytes;
  PinnedAllocation host;
  DeviceAllocation device;
};

void copies_of_a_stream_are_done_in_order_and_others_wait_by_events(BoardBootstrap&) {
  const User user;
  user.make_current();
  CudaStream first(driver()), second(driver());
  CudaEvent event(driver());
  Both a(1000), b(1000);
  for (int turn = 1; turn <= 20; ++turn) {
    a[0] = a[999] = turn;
    b[999] = 0;
    first.copy(a.device.get(), a.at(), a.bytes);
    event.record(first.get());
    second.wait_for(event.get());
    second.copy(b.device.get(), a.device.get(), a.bytes);
    second.copy(b.at(), b.device.get(), b.bytes);
    if (turn % 2 == 0) {
      second.synchronize();
    } else {
      while (!second.ready()) std::this_thread::yield();
    }
    expect(event.ready(), "what the second stream has waited for");
    expect(b[0] == turn && b[999] == turn, "turn " + std::to_string(turn));
  }
}

// Short copies are made as copies of rows. A plain short copy would wait for other processes' time
// slices on the compute units.
void short_copies_are_of_rows_but_under_mps(BoardBootstrap&) {
  const User user;
  user.make_current();
  const auto rows_of = [&user](std::size_t bytes) {
    CudaStream stream(driver());
    const DeviceAllocation device(driver(), bytes);
    std::vector<char> given(bytes), found(bytes);
    std::iota(given.begin(), given.end(), 1);
    const long before = user.count("rows");
    stream.exchange(device.get(), address_of(given.data()), bytes);
    const long rows = user.count("rows") - before;
    stream.exchange(address_of(found.data()), device.get(), bytes);
    stream.synchronize();
    expect(found == given, std::to_string(bytes) + " bytes");
    return rows;
  };
  for (const std::size_t bytes : {2UL, 3UL, 8UL, 4097UL, 65535UL}) {
    expect(rows_of(bytes) == 1, std::to_string(bytes) + " bytes are copied as rows");
  }
  for (const std::size_t bytes : {1UL, 65536UL, 100001UL})
    expect(rows_of(bytes) == 0, "others are not");
  user.set("mps", 1);
  expect(rows_of(8) == 0, "where processes use the device at once there is no need");
  user.set("mps", 0);
}

// ---- between processes ------------------------------------------------------------------------

struct Handles {
  IpcHandle memory, written, read;
};

void memory_and_events_pass_between_processes(BoardBootstrap& ranks) {
  const User user;
  user.make_current();
  const bool exports = ranks.rank() == 0;
  {
    CudaStream stream(driver());
    Both mine(1000);
    CudaEvent done(driver(), device::Sharing::kProcesses);
    if (exports) {
      user.set("least_delay", 20'000'000);
      mine[999] = 42;
      stream.copy(mine.device.get(), mine.at(), mine.bytes);
      done.record(stream.get());
    }
    std::array<Handles, 2> handles{};
    Handles own{};
    if (exports) own = {mine.device.exported(), done.exported(), {}};
    ranks.allgather(&own, sizeof own, handles.data());
    if (!exports) {
      const ImportedAllocation theirs(driver(), handles[0].memory);
      const ImportedAllocation again(driver(), handles[0].memory);
      expect(theirs.get() == again.get(), "memory is mapped once");
      const CudaEvent written(driver(), handles[0].written);
      stream.wait_for(written.get());
      stream.copy(mine.at(), theirs.get(), mine.bytes);
      stream.synchronize();
      expect(mine[999] == 42, "what the exporter has written late");
    }
    ranks.barrier();
    stream.synchronize();
  }
  expect_nothing_left(user);
}

void refused_handles_are_errors(BoardBootstrap&) {
  const User user;
  user.make_current();
  const DeviceAllocation memory(driver(), 4096);
  const IpcHandle handle = memory.exported();
  expect(!message_of<DriverError>([&] { const ImportedAllocation own(driver(), handle); }).empty(),
         "a handle of this process");
  user.fail("cuIpcGetMemHandle", 801);
  expect(!message_of<DriverError>([&] { memory.exported(); }).empty(), "no IPC here");
  const CudaEvent event(driver());
  expect(!message_of<DriverError>([&] { event.exported(); }).empty(), "an event of one process");
}

// ---- where an array lies ------------------------------------------------------------------------

device::Location locate(const void* pointer, std::size_t bytes,
                        std::optional<std::uint64_t> stream = {}) {
  return device::locate(pointer, bytes, stream, {kSimulated, {kSimulated}});
}

void host_memory_is_the_hosts_whatever_the_array_says(BoardBootstrap&) {
  const std::vector<float> array(100);
  const auto is_host = [&] { return locate(array.data(), 400).place == device::Place::kHost; };
  const auto* const nowhere = reinterpret_cast<const void*>(0x1230);
  expect(is_host(), "without a driver");
  expect(locate(nullptr, 0).place == device::Place::kHost, "nothing lies anywhere");
  expect_text(locate(nowhere, 16).text,
              {"no memory of this process", "no CUDA driver is loaded", "address 0x1230"});
  const User user;
  expect(is_host(), "with a driver that nobody has initialised");
  expect_text(locate(nowhere, 16).text, {"nobody has initialised the CUDA driver"});
  user.make_current();
  expect(is_host(), "with a driver");
  expect(locate(nowhere, 16).place == device::Place::kNowhere, "an address without memory");
}

void device_memory_is_known_also_in_threads_without_a_context(BoardBootstrap&) {
  const User user;
  user.make_current();
  const Address memory = user.allocate(4096), managed = user.allocate_managed(4096);
  std::thread([&] {
    expect_text(locate(pointer_to(memory + 8), 400).text,
                {"the memory of CUDA device 0 (Simulated GPU 0)"});
    expect_text(locate(pointer_to(managed), 400).text, {"managed memory of CUDA device 0"});
  }).join();
  user.free(memory);
  expect_text(locate(pointer_to(memory), 16).text, {"which the CUDA driver does not know either"});
  expect(user.count("contexts") == 1, "gradred makes none");
}

void host_memory_that_a_device_writes_is_waited_for(BoardBootstrap&) {
  const User user;
  user.make_current();
  user.set("least_delay", 20'000'000);
  Both both(10);
  both[0] = 1;
  const auto standard = device::StreamHandle{};
  const auto copy = driver().call.MemcpyAsync;
  driver().check(copy(both.device.get(), both.at(), both.bytes, standard), "out");
  driver().check(copy(both.at() + 4, both.device.get(), 4, standard), "in");
  expect(locate(both.host.get(), both.bytes, 1).place == device::Place::kHost, "pinned memory");
  expect(both[1] == 1, "the default stream has written it");
}

// Handles of default streams are valid only in a context. While a stream is captured, the driver
// lets no thread wait unless the thread has declared that it does not take part in the capture.
void streams_are_waited_for_in_threads_without_a_context(BoardBootstrap&) {
  const User user;
  user.make_current();
  const std::vector<float> array(100);
  const device::CudaStream captured(driver());
  user.must("cuStreamBeginCapture_v2", static_cast<void*>(captured.get()), 0);
  std::thread([&] {
    for (const std::uint64_t stream : {1U, 2U}) {
      expect(locate(array.data(), 400, stream).place == device::Place::kHost, "host memory");
    }
  }).join();
  void** const no_graph = nullptr;
  user.must("cuStreamEndCapture", static_cast<void*>(captured.get()), no_graph);
  expect(user.count("contexts") == 1, "gradred makes none");
}

// ---- what the simulated driver catches ----------------------------------------------------------

void host_access_to_device_memory_is_caught(BoardBootstrap&) {
  expect(!is_caught([] { return true; }), "a right program passes");
  for (const bool freed : {false, true}) {
    expect(is_caught([&] {
             const User user;
             user.make_current();
             const Address memory = user.allocate(4096);
             if (freed) user.free(memory);
             const volatile auto* const pointer = static_cast<char*>(pointer_to(memory));
             return *pointer == *pointer;
           }),
           freed ? "freed memory" : "device memory");
  }
}

// Copies in by one stream and back by another. Returns true if the data is right.
bool comes_back(bool waits_by_event, bool synchronizes) {
  const User user;
  user.make_current();
  user.set("least_delay", 10'000'000);
  CudaStream out(driver());
  user.set("least_delay", 1'000'000);
  CudaStream in(driver());
  Both a(10), b(10);
  CudaEvent event(driver());
  a[0] = 7;
  b[0] = 0;
  user.set("least_delay", 30'000'000);
  out.copy(a.device.get(), a.at(), a.bytes);
  event.record(out.get());
  user.set("least_delay", 0);
  if (waits_by_event) in.wait_for(event.get());
  in.copy(b.at(), a.device.get(), a.bytes);
  if (synchronizes) in.synchronize();
  const bool well = b[0] == 7;
  user.must("cuCtxSynchronize");
  return well;
}

void missing_synchronisation_is_caught(BoardBootstrap&) {
  expect(!is_caught([] { return comes_back(true, true); }), "a right program passes");
  expect(is_caught([] { return comes_back(false, true); }), "streams without order");
  expect(is_caught([] { return comes_back(true, false); }), "a host that does not wait");
}

void use_after_free_is_caught(BoardBootstrap&) {
  const auto copies = [](bool frees_too_early) {
    const User user;
    user.make_current();
    user.set("least_delay", 10'000'000);
    CudaStream stream(driver());
    Both both(10);
    stream.copy(both.device.get(), both.at(), both.bytes);
    if (frees_too_early) both.device.reset();
    stream.synchronize();
    return true;
  };
  expect(!is_caught([&] { return copies(false); }), "a right program passes");
  expect(is_caught([&] { return copies(true); }), "memory that is freed under a copy");
}

int run_all(const std::string& part) {
  Report report(part);
  const auto on = on_ranks(report, Ranks::kProcesses);
  const auto alone = [&](const char* name, const Body& body) { on(1, name, body); };
  alone("without_a_driver_nothing_is_loaded_and_a_load_says_what_is_missing",
        without_a_driver_nothing_is_loaded_and_a_load_says_what_is_missing);
  alone("a_driver_is_used_once_the_program_has_begun_with_it",
        a_driver_is_used_once_the_program_has_begun_with_it);
  alone("a_forked_child_has_no_driver", a_forked_child_has_no_driver);
  alone("a_driver_that_is_too_old_is_named", a_driver_that_is_too_old_is_named);
  alone("functions_are_found_without_the_drivers_help",
        functions_are_found_without_the_drivers_help);
  alone("what_is_optional_may_be_missing", what_is_optional_may_be_missing);
  alone("errors_name_code_text_place_and_remedy", errors_name_code_text_place_and_remedy);
  alone("after_the_loss_of_the_device_every_call_raises",
        after_the_loss_of_the_device_every_call_raises);
  alone("owners_give_back_what_they_own_from_any_thread",
        owners_give_back_what_they_own_from_any_thread);
  alone("owners_may_outlive_the_context", owners_may_outlive_the_context);
  alone("primary_context_of_a_device_is_used_only_if_it_is_active",
        primary_context_of_a_device_is_used_only_if_it_is_active);
  alone("copies_of_a_stream_are_done_in_order_and_others_wait_by_events",
        copies_of_a_stream_are_done_in_order_and_others_wait_by_events);
  alone("short_copies_are_of_rows_but_under_mps", short_copies_are_of_rows_but_under_mps);
  on(2, "memory_and_events_pass_between_processes", memory_and_events_pass_between_processes);
  alone("refused_handles_are_errors", refused_handles_are_errors);
  alone("host_memory_is_the_hosts_whatever_the_array_says",
        host_memory_is_the_hosts_whatever_the_array_says);
  alone("device_memory_is_known_also_in_threads_without_a_context",
        device_memory_is_known_also_in_threads_without_a_context);
  alone("host_memory_that_a_device_writes_is_waited_for",
        host_memory_that_a_device_writes_is_waited_for);
  alone("streams_are_waited_for_in_threads_without_a_context",
        streams_are_waited_for_in_threads_without_a_context);
  alone("host_access_to_device_memory_is_caught", host_access_to_device_memory_is_caught);
  alone("missing_synchronisation_is_caught", missing_synchronisation_is_caught);
  alone("use_after_free_is_caught", use_after_free_is_caught);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: device_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
