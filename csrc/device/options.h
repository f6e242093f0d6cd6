// What a program may set for the device layer.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradred::device {

struct Options {
  std::string driver = "libcuda.so.1";
  std::vector<std::string> compilers = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};
  std::string folder{};                           // where compiled kernels are kept; empty: nowhere
  std::size_t workspace = std::size_t{32} << 20;  // bytes that a rank shares with peers' devices
};

}  // namespace gradred::device
