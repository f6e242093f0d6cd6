// Lines for the program's user.
#pragma once

#include <string>

namespace gradred {

// Prints "gradred: <text>" to stderr, in one write, so that the lines of several ranks stay whole.
void print_report(const std::string& text);
// The same for what makes the program slow, without being an error. A text is printed once in a
// process; after 20 texts nothing is printed. Thread-safe.
void tell_once(const std::string& text) noexcept;

}  // namespace gradred
