// How this rank ends, for the peers of this host that wait for it or that it waits for.
#pragma once

#include <string>
#include <string_view>

namespace gradred {

class Communicator;  // communicator.h

// The program ends for this reason, for example an exception that was not caught. `of_loss`: the
// reason is another rank's end.
void set_exit_reason(std::string_view reason, bool of_loss);
bool has_exit_reason();
// "has left the program: ValueError: ..."; without the reason if there is none.
std::string how_it_leaves();

// The main thread has ended by an exception, and other threads keep the process running. For the
// peers this rank has left, and its communicators can no longer be used. Does not block.
void leave_before_threads() noexcept;
// For a communicator whose set-up another thread has ended meanwhile.
void leave_if_left(Communicator& communicator);

// At exit, if the reason is another rank's end: launchers blame the process that they see end
// first, so another rank should end first. Waits for that, at most 2 s.
void let_cause_end_first() noexcept;

// At exit: ends the progress thread, and gives up what is in flight, of which the peers are
// notified.
void stop_engine() noexcept;

// Called in place of MPI_Finalize, when no part of the program runs any more. Gives up what is in
// flight, notifies the peers that this rank begins no operation any more, and waits until they do
// the same. Returns false if MPI_Finalize must not be called, because it would wait for ranks that
// never come. That is so if this rank or a peer has failed, has ended, or ends because of an error.
bool shutdown_handshake() noexcept;
// Called after MPI_Finalize.
void finalized() noexcept;

}  // namespace gradred
