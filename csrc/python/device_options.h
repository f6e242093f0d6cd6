// Options of the device layer, read from the knobs and from Python's packages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/driver/options.h"

namespace gradred {

// The options. `libraries`: files of NVIDIA's Python packages. The caller holds the GIL.
std::shared_ptr<const device::Options> device_options(const std::vector<std::string>& libraries);
// The options if they are known and no knob has been set since, else nullptr.
std::shared_ptr<const device::Options> known_device_options();

}  // namespace gradred
