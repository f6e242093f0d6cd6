// Writing files that a user names.
#pragma once

#include <string>

namespace gradred {

// Writes the file without blocking on what may lie at the path, such as a pipe that nobody reads.
// Returns 0 or errno. (src/gradred/_util/files.py does the same for Python.)
int write_file(const std::string& path, const std::string& text);
std::string why_not_written(int error);

}  // namespace gradred
