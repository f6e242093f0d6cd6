// Files that are named in knobs and written when the program ends. That they can be written is
// checked when the knob is read.
#pragma once

#include <string>
#include <string_view>

namespace gradred {

// Makes the folder of a file that this rank will write at the end. `path` is the user's text, with
// or without a place for the rank's number. Returns the absolute path, because the program may have
// changed its working directory by then. Throws UsageError if the folder cannot be made or is not
// writable.
std::string require_destination(std::string_view knob, const std::string& path);

}  // namespace gradred
