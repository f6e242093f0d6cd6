// Failure reports, and what a failure that only some ranks may know means for the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "base/random.h"
#include "base/rank_names.h"

namespace gradred {

enum class Failure : std::uint32_t { kTransport, kPeerLost, kTimeout };

struct FailureReport {
  Failure kind = Failure::kTransport;
  std::string text;
  std::uint64_t id = random_number();  // distinguishes reports with equal text
};

// Base of the exceptions of throw_report(): the error repeats an earlier failure.
struct FailedBefore {
  FailureReport report;
  RankNames::Carries carries;
};

bool is_usage_error(const std::exception_ptr& thrown);
// "PeerLost: rank 1 has ended"
std::string text_with_kind(const std::exception_ptr& thrown);
std::string text_with_kind(const FailureReport& report);
// A report as one line of text for other processes. read_report() returns nullopt if the text is no
// report.
std::string written(const FailureReport& report);
std::optional<FailureReport> read_report(std::string_view written);
// A report of what ended an operation, in a form that can be sent to other ranks.
FailureReport report_of(const std::exception_ptr& thrown);
// The same, but if `thrown` repeats an earlier failure, the report of that failure.
FailureReport first_report_of(const std::exception_ptr& thrown);
// Throws the exception for a report. Its text says that the communicator, or the persistent
// operation that it carries, failed before.
[[noreturn]] void throw_report(const FailureReport& report, bool may_shrink,
                               RankNames::Carries carries = RankNames::Carries::kAny);

// Set when a communicator of this process has failed. Peers may have ended or hang, and
// MPI_Finalize would wait for them.
inline std::atomic<bool> process_poisoned{false};
// Stores the first failure of this process. The launcher receives it when this process ends.
void note_failure(const FailureReport& report);
std::optional<FailureReport> first_failure();

}  // namespace gradred
