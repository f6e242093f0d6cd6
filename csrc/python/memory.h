// What the device layer is told, as Python code has asked for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/options.h"

namespace gradred {

// `libraries`: of NVIDIA's packages. With the GIL.
std::shared_ptr<const device::Options> device_options(const std::vector<std::string>& libraries);
// The same, unless a knob has been set since; null: nobody has asked yet.
std::shared_ptr<const device::Options> known_device_options();

}  // namespace gradred
