// Whether this extension and the Python files beside it belong together.
#pragma once

#include <string>

namespace gradred {

// The folder whose `_core.pyi` is not the one that this extension was built with; empty: it is, or
// there is none.
std::string folder_of_another_interface();

}  // namespace gradred
