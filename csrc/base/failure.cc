#include "base/failure.h"

#include <new>

#include "base/errors.h"

namespace gradred {

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
  } catch (...) {  // the others travel between ranks, too
  }
  const FailureReport report = report_of(thrown);
  const char* kind = report.kind == Failure::kPeerLost  ? "PeerLost: "
                     : report.kind == Failure::kTimeout ? "TimeoutError: "
                                                        : "TransportError: ";
  return kind + report.text;
}

FailureReport report_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const PeerLost& error) {
    return {Failure::kPeerLost, error.what()};
  } catch (const TimeoutError& error) {
    return {Failure::kTimeout, error.what()};
  } catch (const std::bad_alloc&) {
    return {Failure::kTransport, "a rank has got no memory"};
  } catch (const std::exception& error) {
    return {Failure::kTransport, error.what()};
  } catch (...) {  // an exception of Python: this rank lives, perhaps, but not in this operation
    return {Failure::kPeerLost,
            "a rank left the call by Ctrl-C, or by another exception of a signal's handler"};
  }
}

void throw_report(const FailureReport& report, bool may_shrink) {
  process_poisoned.store(true, std::memory_order_relaxed);
  const std::string text = std::string(kFailedBefore) + report.text;
  if (report.kind == Failure::kPeerLost) throw PeerLost(text, may_shrink);
  if (report.kind == Failure::kTimeout) throw TimeoutError(text);
  throw TransportError(text);
}

}  // namespace gradred
