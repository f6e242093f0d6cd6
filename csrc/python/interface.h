// Check that this extension and the Python files next to it belong to the same version.
#pragma once

#include <string>

namespace gradred {

// Returns the folder of a `_core.pyi` that differs from the one this extension was built with.
// Returns an empty string if they are the same or there is no such file.
std::string folder_of_another_interface();

}  // namespace gradred
