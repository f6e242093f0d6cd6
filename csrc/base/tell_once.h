// Lines for the program's user about what makes it slow, without being an error.
#pragma once

#include <string>

namespace gradred {

// Prints "gradred: <text>" to stderr, in one write. A text is printed once in a process; after 20
// texts nothing is printed. Thread-safe.
void tell_once(const std::string& text) noexcept;

}  // namespace gradred
