#include "tensorflow/completion.h"

#include <string_view>

namespace gradred::tensorflow {

bool Completion::is_tensorflows(const void* function) {
  Dl_info found{};
  if (function == nullptr || dladdr(function, &found) == 0 || found.dli_fname == nullptr) {
    return false;
  }
  std::string_view file = found.dli_fname;
  file.remove_prefix(file.rfind('/') + 1);  // the folder may be that of any library
  return file.find("tensorflow") != std::string_view::npos;
}

}  // namespace gradred::tensorflow
