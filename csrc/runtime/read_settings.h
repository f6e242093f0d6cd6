// The settings of this process, read from its knobs and its environment.
#pragma once

#include <optional>
#include <string>

namespace gradred {

// Reads the settings for communicators that are used from now on; the time limits apply to all.
// Throws UsageError for an invalid knob, and if a file that a knob names could not be written.
void read_settings();
// The profile file of the last settings that asked for a profile; empty: only the table is printed.
// No value: no profile was asked for.
std::optional<std::string> profile_wanted();

}  // namespace gradred
