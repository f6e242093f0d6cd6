// The settings of this process, from its knobs and its environment.
#pragma once

#include <optional>
#include <string>

namespace gradred {

// Reads them for communicators that are met from now on; the time limits hold for all. Throws
// UsageError for a knob that has no meaning, and for a file of it that could not be written.
void read_settings();
// The file of the last settings that asked for a profile; empty: the table is all.
std::optional<std::string> profile_wanted();

}  // namespace gradred
