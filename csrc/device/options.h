// What a program may set for the device layer.
#pragma once

#include <string>
#include <vector>

namespace gradred::device {

struct Options {
  std::string driver = "libcuda.so.1";
  std::vector<std::string> compilers = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};
  std::vector<std::string> collectives = {"libnccl.so.2"};
  std::string folder{};              // where compiled kernels are kept; empty: nowhere
  bool nccl_shares_devices = false;  // between ranks, where it can: its own variable says so
  bool audits_pointers = false;  // each look at an address is compared with what the driver says
  std::vector<std::string> linkers = {"libnvJitLink.so.13", "libnvJitLink.so.12"};
};

}  // namespace gradred::device
