// The MPI's generalized request of an operation in flight: with it the MPI's own Wait and Test see
// the operation.
//
// Making, completing and freeing a request costs more than a small operation takes. If the program
// waits with gradred's functions, the MPI is not notified of the end. The request stays incomplete,
// and the next operation reuses it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/driving.h"
#include "engine/operation.h"
#include "mpi/mpi.h"

namespace gradred {

struct MadeRequest;  // a request of the MPI, and what the MPI passes to its callbacks

class GeneralizedRequest final : public Completable {
 public:
  // Opens a request for `operation`, which owns this object, until it is completed or taken back.
  // Throws TransportError.
  void open(std::shared_ptr<Operation> operation);
  // MPI_REQUEST_NULL before open().
  mpi::Handle handle() const { return handle_; }

  // Called once when the operation has ended, before that is visible. Returns whether complete()
  // must follow. It must not if there is no request, or if a waiting thread takes the request back.
  bool end() noexcept;
  // Notifies the MPI of the end. A second call, or a call after take_back(), does nothing.
  void complete() noexcept override;
  std::shared_ptr<Operation> operation() const;  // between end() and complete()
  // gradred reports to the program how the operation has ended. Otherwise the reason for the error
  // with which the MPI's own Wait or Test ends is printed.
  void reported() { reported_.store(true, std::memory_order_relaxed); }
  bool is_reported() const { return reported_.load(std::memory_order_relaxed); }

  // Held by a thread that waits in gradred's functions and may call take_back(). If the operation
  // has ended by the time of the destructor, and the request was not taken back, the MPI is
  // notified.
  class Held {
   public:
    explicit Held(GeneralizedRequest& request);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    GeneralizedRequest& request_;
    const bool held_;
  };
  // After the end: returns whether the request is gradred's again, so that the program's handle
  // must be set to null.
  bool take_back();

 private:
  enum class State : std::uint8_t {
    kNone,   // no request
    kOpen,   // the operation is in flight
    kHeld,   // in flight, and a waiting thread may take the request back
    kEnded,  // the operation has ended, and the MPI does not know
    kOver,   // ended; the MPI need not be notified any more
  };
  bool change(State from, State to) { return state_.compare_exchange_strong(from, to); }

  std::atomic<State> state_{State::kNone};
  std::atomic<bool> reported_{false};
  MadeRequest* made_ = nullptr;  // for kOpen, kHeld, kEnded
  mpi::Handle handle_ = mpi::get().is.request_null;
};

// The request of an operation that has ended well before it had a request. It is complete for
// whoever asks the MPI. But the MPI does not learn that before it asks, if it can ask.
class EndedRequest {
 public:
  void open();  // throws TransportError
  bool is_open() const { return made_ != nullptr; }
  mpi::Handle handle() const;
  // Closes it. Returns whether the request is gradred's again, so that the program's handle must be
  // set to null. Otherwise the MPI knows of the end, and its functions free the request.
  bool take_back();
  // Closes it; the program has the handle and uses the MPI's functions.
  void leave() { made_ = nullptr; }
  // Closes it when the program drops its object. The MPI learns of the end now, since each request
  // of which it does not know costs all its waits time. C code may have a copy of the handle, and
  // may have completed it.
  void drop();

 private:
  MadeRequest* made_ = nullptr;
};

// Before MPI_Finalize, after stop_driving(): completes the requests that no operation uses.
void complete_spare_requests() noexcept;

}  // namespace gradred
