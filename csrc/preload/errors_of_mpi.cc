#include "preload/errors_of_mpi.h"

#include <array>
#include <mutex>
#include <new>
#include <string>

#include "base/errors.h"
#include "base/failure.h"
#include "base/tell_once.h"
#include "preload/library.h"

namespace gradred::preload {
namespace {

constexpr std::size_t kLongestText = 255;  // the shortest MPI_MAX_ERROR_STRING, without its end

enum class Class : std::uint8_t { kUsage, kTransport, kTimeout, kPeerLost, kOther };
constexpr std::size_t kClasses = 5;

Class class_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const UsageError&) {
    return Class::kUsage;
  } catch (const TimeoutError&) {
    return Class::kTimeout;
  } catch (const PeerLost&) {
    return Class::kPeerLost;
  } catch (const TransportError&) {
    return Class::kTransport;
  } catch (...) {
    return Class::kOther;
  }
}

// The class's code, an error class of the MPI. It gets this text, until the next error of the
// class.
int code_with(Class which, const std::string& text) {
  static std::mutex mutex;
  static std::array<int, kClasses> codes{};
  const std::lock_guard lock(mutex);
  int& code = codes[static_cast<std::size_t>(which)];
  if (code == 0 && more().Add_error_class(&code) != 0) return mpi::get().is.err_other;
  more().Add_error_string(code, text.substr(0, kLongestText).c_str());
  return code;
}

bool returns_errors(mpi::Handle comm) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle handler = 0;
  if (mpi.call.Comm_get_errhandler(comm, &handler) != 0) return false;
  const bool returns = mpi.normalise(handler) == mpi.is.errors_return;
  mpi.call.Errhandler_free(&handler);
  return returns;
}

// The error's code. Prints its text if the handler does not return the code.
int reported(mpi::Handle comm, const std::exception_ptr& thrown) noexcept try {
  const std::string text = text_with_kind(thrown);
  const int code = code_with(class_of(thrown), "gradred: " + text);
  if (!returns_errors(comm)) print_report(text);
  return code;
} catch (const std::exception&) {  // there is no memory for the text
  return mpi::get().is.err_other;
}

}  // namespace

int raise_error(mpi::Handle comm, const std::exception_ptr& thrown) {
  const int code = reported(comm, thrown);
  more().Comm_call_errhandler(comm, code);
  return code;
}

}  // namespace gradred::preload
