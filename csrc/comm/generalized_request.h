// The MPI's generalized request of an operation in flight, by which its own Wait and Test know it.
//
// To make one, complete it and free it costs more than a small operation takes. Where the program
// waits by gradred's functions the MPI never hears of the end: the request stays incomplete, and
// the next operation has it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "mpi/mpi.h"

namespace gradred {

class StartedOperation;

class GeneralizedRequest {
 public:
  // Of `operation`, until it has been completed or taken back. Throws TransportError.
  void open(std::shared_ptr<StartedOperation> operation);
  // MPI_REQUEST_NULL before open().
  mpi::Handle handle() const { return handle_; }

  // The operation has ended: once, before that is visible. Returns whether complete() is to follow:
  // not where there is no request, or where a thread waits that takes it back.
  bool end() noexcept;
  // Tells the MPI of the end; again, or after take_back(), does nothing.
  void complete() noexcept;
  std::shared_ptr<StartedOperation> operation() const;  // between end() and complete()

  // Of who waits in gradred's functions and may take_back() the request while this lives. If the
  // operation has ended then, and nobody has, the MPI is told.
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
  // After the end: whether the request is gradred's again, so that the program's handle has to be
  // made null.
  bool take_back();

  struct Slot;  // what the MPI hands to its callbacks

 private:
  enum class State : std::uint8_t {
    kNone,   // no request
    kOpen,   // the operation is in flight
    kHeld,   // and a thread waits that takes the request back
    kEnded,  // the MPI does not know that it has
    kOver,   // ended, and nobody is to be told
  };
  bool change(State from, State to) { return state_.compare_exchange_strong(from, to); }

  std::atomic<State> state_{State::kNone};
  Slot* slot_ = nullptr;  // kOpen, kHeld, kEnded
  mpi::Handle handle_ = mpi::get().is.request_null;
};

// Those that no operation has. Of the process.
class SpareRequests {
 public:
  GeneralizedRequest::Slot* take();  // null: there is none
  void put(GeneralizedRequest::Slot* slot);
  void complete_all() noexcept;  // before MPI_Finalize

 private:
  std::mutex mutex_;
  std::vector<GeneralizedRequest::Slot*> slots_;
};

}  // namespace gradred
