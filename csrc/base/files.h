// Files that a user names, written in one piece.
#pragma once

#include <string>

namespace gradred {

// What else lies at the path makes nobody wait: to open a pipe does until somebody reads it.
// Returns errno; 0: written. (src/gradred/_files.py does the same for Python.)
int write_file(const std::string& path, const std::string& text);
std::string why_not_written(int error);

}  // namespace gradred
