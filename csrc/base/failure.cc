#include "base/failure.h"

#include <charconv>
#include <mutex>
#include <new>

#include "base/errors.h"

namespace gradred {
namespace {

const char* name_of(Failure kind) {
  if (kind == Failure::kPeerLost) return "PeerLost";
  return kind == Failure::kTimeout ? "TimeoutError" : "TransportError";
}

std::string what_failed(RankNames::Carries carries) {
  return carries == RankNames::Carries::kAny ? "communicator" : "persistent operation";
}

template <class Kind>
struct Again final : Kind, FailedBefore {
  template <class... More>
  explicit Again(const FailedBefore& first, More... more)
      : Kind("the " + what_failed(first.carries) +
                 " failed and can no longer be used: " + first.report.text,
             more...),
        FailedBefore{first} {}
};

struct First {
  std::mutex mutex;
  std::optional<FailureReport> report;

  static First& get() {
    static auto* first = new First;  // never freed: used until the process exits
    return *first;
  }
};

}  // namespace

bool is_usage_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const UsageError&) {
    return true;
  } catch (...) {
    return false;
  }
}

std::string text_with_kind(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const UsageError& error) {
    return std::string("UsageError: ") + error.what();
  } catch (...) {  // the other errors can be sent to other ranks
  }
  return text_with_kind(report_of(thrown));
}

std::string text_with_kind(const FailureReport& report) {
  return std::string(name_of(report.kind)) + ": " + report.text;
}

std::string written(const FailureReport& report) {
  return std::to_string(static_cast<unsigned>(report.kind)) + " " + report.text;
}

std::optional<FailureReport> read_report(std::string_view written) {
  unsigned kind = 0;
  const char* const last = written.data() + written.size();
  const auto [end, error] = std::from_chars(written.data(), last, kind);
  if (error != std::errc() || kind > static_cast<unsigned>(Failure::kTimeout) || end == last) {
    return std::nullopt;
  }
  return FailureReport{static_cast<Failure>(kind), std::string(end + 1, last)};
}

void note_failure(const FailureReport& report) {
  First& first = First::get();
  const std::lock_guard lock(first.mutex);
  if (!first.report) first.report = report;
}

std::optional<FailureReport> first_failure() {
  First& first = First::get();
  const std::lock_guard lock(first.mutex);
  return first.report;
}

FailureReport report_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const PeerLost& error) {
    return {Failure::kPeerLost, error.what()};
  } catch (const TimeoutError& error) {
    return {Failure::kTimeout, error.what(), error.id()};
  } catch (const std::bad_alloc&) {
    return {Failure::kTransport, "a rank has got no memory"};
  } catch (const std::exception& error) {
    return {Failure::kTransport, error.what()};
  } catch (...) {  // a Python exception: this rank may live, but has left the operation
    return {Failure::kPeerLost, "a rank left the call by Ctrl-C (KeyboardInterrupt)"};
  }
}

FailureReport first_report_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const FailedBefore& error) {
    return error.report;
  } catch (...) {  // `thrown` is the first failure
  }
  return report_of(thrown);
}

void throw_report(const FailureReport& report, bool may_shrink, RankNames::Carries carries) {
  process_poisoned.store(true, std::memory_order_relaxed);
  const FailedBefore first{report, carries};
  if (report.kind == Failure::kPeerLost) throw Again<PeerLost>(first, may_shrink);
  if (report.kind == Failure::kTimeout) throw Again<TimeoutError>(first, report.id);
  throw Again<TransportError>(first);
}

}  // namespace gradred
