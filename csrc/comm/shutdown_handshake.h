// The end of this rank, for the peers of this host that wait for it or that it waits for.
#pragma once

#include <string>
#include <string_view>

namespace gradred {

// The program ends because of this: an exception that nobody has caught, for example. `of_loss`:
// one that tells of another rank's end.
void set_exit_reason(std::string_view reason, bool of_loss);
bool has_exit_reason();
// "has left the program: ValueError: ..."; without the reason where there is none.
std::string how_it_leaves();

// The main thread has ended by an exception, and others keep the process going: for the peers this
// rank has left, and its communicators can be used no more. Does not block.
void leave_before_threads() noexcept;

// At exit, where the reason is another rank's end: launchers blame the process that they see end
// first, so one of the others should. Waits for that, at most 2 s.
void let_cause_end_first() noexcept;

// At exit: the progress thread ends, and the peers are told of what is in flight here that it has
// no end.
void stop_engine() noexcept;

// In place of MPI_Finalize, when nothing of the program runs any more: gives up what is in flight,
// tells the peers that this rank begins no operation any more, and waits until they say the same.
// False when MPI_Finalize must not be called, since it would wait for ranks that never come: this
// one or a peer has failed, or ended, or ends because of an error.
bool shutdown_handshake() noexcept;
// MPI_Finalize is over.
void finalized() noexcept;

}  // namespace gradred
