// Files that knobs name, to be written when the program ends: that they can be is seen before.
#pragma once

#include <string>
#include <string_view>

namespace gradred {

// Makes the folder of a file that this rank is to write at the end. `path` is as the user wrote it,
// with or without a place for the rank's number. Returns it from the root: by the end the program
// may work in another folder. Throws UsageError where the folder cannot be made, or takes no files.
std::string require_destination(std::string_view knob, const std::string& path);

}  // namespace gradred
