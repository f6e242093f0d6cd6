// Settings of the device layer.
#pragma once

#include <string>
#include <vector>

namespace gradred::device {

struct Options {
  std::string driver = "libcuda.so.1";
  std::vector<std::string> compilers = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};
  std::vector<std::string> collectives = {"libnccl.so.2"};
  std::string folder{};  // where compiled kernels are cached; empty: nowhere
  // Whether ranks may share a device, if NCCL supports it; from NCCL's own variable.
  bool nccl_shares_devices = false;
  std::vector<std::string> linkers = {"libnvJitLink.so.13", "libnvJitLink.so.12"};
};

}  // namespace gradred::device
