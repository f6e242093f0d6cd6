// What a failure that only some ranks may know of means for the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "base/random.h"

namespace gradred {

enum class Failure : std::uint32_t { kTransport, kPeerLost, kTimeout };

struct FailureReport {
  Failure kind = Failure::kTransport;
  std::string text;
  std::uint64_t id = random_number();  // tells it from another one of the same words
};

// What throw_report() throws is one of these, too: an error that tells of an earlier one.
struct FailedBefore {
  FailureReport report;
};

bool is_usage_error(const std::exception_ptr& thrown);
// "PeerLost: rank 1 has ended"
std::string text_with_kind(const std::exception_ptr& thrown);
std::string text_with_kind(const FailureReport& report);
// In one line, for other processes; nullopt: it is none.
std::string written(const FailureReport& report);
std::optional<FailureReport> read_report(std::string_view written);
// What ended an operation, in a form that travels between ranks.
FailureReport report_of(const std::exception_ptr& thrown);
// The same of the first failure, where that is why this one came to be.
FailureReport first_report_of(const std::exception_ptr& thrown);
// The exception that a report stands for. Its text says that the communicator failed before.
[[noreturn]] void throw_report(const FailureReport& report, bool may_shrink);

// A communicator of this process has failed: peers may be gone or stuck, and MPI_Finalize would
// wait for them.
inline std::atomic<bool> process_poisoned{false};
// The first of these failures; the launcher hears of it when this process ends.
void note_failure(const FailureReport& report);
std::optional<FailureReport> first_failure();

}  // namespace gradred
